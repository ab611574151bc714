"""The `vllm.general_plugins` entry point: puts our classes in the place of vLLM's own."""

from collections.abc import Mapping
from importlib import import_module

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


def register_imported() -> None:
    """Register the classes themselves, in a process that needs them anyway.

    A class that vLLM knows by name alone is inspected in a process of its own, which imports vLLM again: 15 s, at the
    first start on a machine and after each change of the module.
    """
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # now, or they would put the names back later
    for architecture, target in ARCHITECTURES.items():
        module, _, name = target.partition(":")
        ModelRegistry.register_model(architecture, getattr(import_module(module), name))
