"""Servers that would attend by a softmax of their own: refused, by what is saved with a model.

vLLM and SGLang know many architectures by themselves, take the others from transformers, and put
attention of their own into both. They pick the architecture by its name in config.json, where
transformers reads another field; so a name that is no architecture's stops them, also in processes
that have never heard of hyla, and the name says why.
"""

from transformers import PreTrainedConfig

SERVERS = ("vllm", "sglang")  # as names of `attn_implementation`
ADVICE = (
    "its weights were trained with an attention that servers such as vLLM and SGLang do not have: "
    "they would compute a softmax instead; run it by transformers itself (docs/serving.md of hyla)"
)
_MARK = f" with attention of hyla: {ADVICE}"


def marked(architectures: list[str] | None, *, serve: bool) -> list[str] | None:
    """Return names of architectures that servers know if they may `serve` them, or else do not."""
    if not architectures:
        return architectures
    return [name.removesuffix(_MARK) + ("" if serve else _MARK) for name in architectures]


def refuse_servers(config: PreTrainedConfig, name: str | None) -> None:
    """Raise a ValueError where a server puts its own attention in the place of ours."""
    if name in SERVERS and any(one.endswith(_MARK) for one in config.architectures or ()):
        raise ValueError(f"this model cannot be run with attn_implementation={name!r}: {ADVICE}")
