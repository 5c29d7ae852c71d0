"""Names of `attn_implementation` in config.json, which transformers itself does not write.

It applies what it finds there, though: one name for all parts of a model, or a dict with a name for
each part.
"""

import functools
from typing import Any

from transformers import PreTrainedConfig

from hyla.integrations.transformers.masks import FLAGS_AGREE
from hyla.integrations.transformers.proof import registered
from hyla.integrations.transformers.serving import marked

_FIELD = "attn_implementation"


def save_names() -> None:
    """Let configs write the registered names that their models, or parts of them, were given."""
    to_dict = PreTrainedConfig.to_dict

    @functools.wraps(to_dict)
    def with_names(self: PreTrainedConfig) -> dict[str, Any]:
        fields = to_dict(self)
        fields.pop(FLAGS_AGREE, None)
        names = _names(self)
        if names is not None:
            fields[_FIELD] = names
        others = names if isinstance(names, dict) else {"": names}
        serve = all(name in (None, "softmax") for name in others.values())
        if "architectures" in fields:
            fields["architectures"] = marked(fields["architectures"], serve=serve)
        return fields

    PreTrainedConfig.to_dict = with_names


def _names(config: PreTrainedConfig) -> str | dict[str, Any] | None:
    """Return the registered name of a config if all its parts have it; else those of its parts."""
    own = config._attn_implementation if config._attn_implementation in registered else None
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    names = {name: _names(part) for name, part in parts.items() if part is not None}
    if all(name == own for name in names.values()):
        return own
    given = {"": own} | names
    return {part: name for part, name in given.items() if name is not None}
