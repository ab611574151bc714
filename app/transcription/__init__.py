"""The domain: from bytes to a transcript, without FastAPI."""
