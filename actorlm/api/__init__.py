"""The OpenAI-compatible HTTP API. The only place that knows Litestar, uvicorn and JSON bodies; it knows no actor."""
