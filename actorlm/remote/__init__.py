"""Asking any OpenAI-compatible server over HTTP, for `actorlm bench serve` and `actorlm chat`. Knows no tree."""
