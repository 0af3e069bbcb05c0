"""Measuring: what a model does in one process, and what a service does over a wire."""
