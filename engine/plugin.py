"""The `vllm.general_plugins` entry point: puts our classes in the place of vLLM's own."""

from collections.abc import Mapping

# Architecture name in a checkpoint's config.json -> "module:Class". Strings, so that registering
# imports no model code and touches no device before vLLM forks.
ARCHITECTURES: Mapping[str, str] = {
    "Qwen2_5OmniModel": "engine.models.thinker:OmnihearThinker",
    "Qwen2_5OmniForConditionalGeneration": "engine.models.thinker:OmnihearThinker",
}


def register() -> None:
    """Register every class; vLLM calls this in each process it starts, and may call it again.

    There is no guard on "already registered": vLLM knows these architectures itself, and a guard would keep its class.
    """
    from vllm import ModelRegistry

    for architecture, target in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, target)
