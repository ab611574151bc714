"""The accelerated Qwen2.5-Omni thinker, out of tree for vLLM 0.32.0."""
