"""Hugging Face transformers: HYLA as an attention implementation, and our decoder as a model.

>>> import hyla.integrations.transformers as hyla_hf  # doctest: +SKIP
>>> hyla_hf.register()  # doctest: +SKIP
>>> AutoModelForCausalLM.from_pretrained(name, attn_implementation="hyla")  # doctest: +SKIP

Importing this module registers `HylaConfig`, `HylaModel` and `HylaForCausalLM` with the Auto
classes; the attention implementations wait for `register`.
"""

from hyla.integrations.transformers.configuration import HylaConfig
from hyla.integrations.transformers.interface import register_attention
from hyla.integrations.transformers.modeling import HylaForCausalLM, HylaModel
from hyla.integrations.transformers.presets import register
from hyla.integrations.transformers.proof import InterfaceIgnoredError
from hyla.integrations.transformers.verification import Verification, verify

__all__ = [
    "HylaConfig",
    "HylaForCausalLM",
    "HylaModel",
    "InterfaceIgnoredError",
    "Verification",
    "register",
    "register_attention",
    "verify",
]
