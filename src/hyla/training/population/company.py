"""Which runs can train together as one population."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hyla.training.config import TrainConfig, merge
from hyla.training.identity import fingerprint
from hyla.training.population.mixing import why_not_mixed


def company_key(config: TrainConfig) -> str | None:
    """Return what runs that can train together have in common; None if a run trains alone.

    That is all but their members and the preset of attention.
    """
    return None if why_not_mixed(config.model) else fingerprint(_common(config))


def check_company(configs: Sequence[TrainConfig]) -> None:
    """Raise a ValueError that says why, unless these runs can train together."""
    if not configs:
        raise ValueError("there is nothing to train: give the config of each run")
    if len({fingerprint(config.to_tree()) for config in configs}) < len(configs):
        raise ValueError("one of these runs is there twice: give all members to one config")
    first, *others = configs
    for config in others:
        different = ", ".join(sorted(_differences(_common(first), _common(config))))
        reason = why_not_mixed(first.model) or why_not_mixed(config.model)
        if different or reason:
            raise ValueError(
                "runs that train together differ in their members and the preset of attention "
                f"alone: {reason or f'these differ in {different}'}"
            )


def _common(config: TrainConfig) -> dict[str, Any]:
    common = replace(config, model=replace(config.model, attention="softmax"))
    tree: dict[str, Any] = common.to_tree() | {"members": []}
    return merge(tree, {"model": {"backend": config.model.backend}})


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of settings that are not the same in two trees, as model.num_layers."""
    for name in one.keys() | other.keys():
        here, there = one.get(name), other.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            yield from (f"{name}.{inner}" for inner in _differences(here, there))
        elif here != there:
            yield name
