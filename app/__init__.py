"""HTTP: the only place that knows FastAPI."""
