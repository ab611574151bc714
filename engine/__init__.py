"""Inference: the only place that knows vLLM and torch. Imports nothing here, so that plugin discovery stays light."""
