"""Libraries that only some of the analyses need."""

from importlib import import_module
from typing import Any

from hyla._errors import install_command


def required(module: str) -> Any:
    """Import a module of an optional library, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        extra = "transformers" if module.startswith("transformers") else "latents"
        raise ImportError(f"{error.name} is not installed: {install_command(extra)}") from error
