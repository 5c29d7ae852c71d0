"""What models are called, so that no two of them share a name."""

from collections.abc import Mapping, Sequence
from typing import Any

_SHORT = {"learning_rate": "lr"}


def distinct(
    labels: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return labels by id; where some are the same, with the settings that tell them apart.

    Settings are added in their order, as few as it takes. Models with the same settings are told
    apart by the end of their id, which a run's fingerprint is in.
    """
    groups: dict[str, list[str]] = {}
    for id, label in labels.items():
        groups.setdefault(label, []).append(id)
    return {id: name for ids in groups.values() for id, name in _named(ids, labels, settings)}


def _named(
    ids: Sequence[str], labels: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    parts: dict[str, list[str]] = {id: [] for id in ids}
    for name in dict.fromkeys(name for id in ids for name in settings[id]):
        told_apart = len(set(map(tuple, parts.values())))
        if told_apart == len(ids):
            break
        added = {id: [*parts[id], _setting(name, settings[id].get(name))] for id in ids}
        if len(set(map(tuple, added.values()))) > told_apart:
            parts = added
    if len(set(map(tuple, parts.values()))) < len(ids):
        parts = {id: [*parts[id], id.rpartition("-")[2]] for id in ids}
    return [(id, ", ".join([labels[id], *parts[id]])) for id in ids]


def _setting(name: str, value: Any) -> str:
    known = _SHORT.get(name, name.rpartition(".")[2].replace("_", " "))
    return f"{known} {value:g}" if isinstance(value, float) else f"{known} {value}"
