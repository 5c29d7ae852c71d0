"""The leaderboard as a page of Markdown, made of its entries alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from hyla.results.leaderboard.entries import FOLDER, Entry, read_entries
from hyla.results.leaderboard.scoring import Part
from hyla.tasks.sraven.variants import VARIANTS, Variant

PAGE = Path("docs/leaderboard.md")
_PUBLISHED = "published.json"


def leaderboard_page(folder: Path = FOLDER) -> str:
    """Return the page of all entries in a folder, and of what others published."""
    entries = read_entries(folder)
    parts = [Path(__file__).with_suffix(".md").read_text(encoding="utf-8")]
    for variant in VARIANTS.values():
        own = [entry for entry in entries if entry.variant == variant.name]
        if own:
            parts.append(_section(variant, own))
    published = folder / _PUBLISHED
    if published.exists():
        parts.append(_published(json.loads(published.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _section(variant: Variant, entries: Sequence[Entry]) -> str:
    facts = variant.published
    ceiling = "not known" if facts["ceiling"] is None else f"{100 * facts['ceiling']:.2f} %"
    models: dict[str, list[Entry]] = {}
    for entry in entries:
        models.setdefault(entry.model, []).append(entry)
    ranked = sorted(models.values(), key=lambda seeds: -_mean(e.score.whole for e in seeds))
    rules = [rule for rule in variant.config.rules if all(rule in e.score.by_rule for e in entries)]
    lines = [
        f"## {variant.name}",
        "",
        f"{variant.summary} {variant.note}".strip(),
        "",
        f"Ceiling {ceiling}; hash `{facts['hash'][:12]}`.",
        "",
        *_table(
            "model | accuracy | of the ceiling | one answer | several | seeds | trained on | "
            "run time",
            (_row(seeds) for seeds in ranked),
        ),
        "",
        "Right integers by rule, per cent:",
        "",
        *_table(
            " | ".join(("model", *(f"`{rule}`" for rule in rules))),
            (
                [
                    seeds[0].model,
                    *(
                        f"{100 * statistics.fmean(e.score.by_rule[rule] for e in seeds):.1f}"
                        for rule in rules
                    ),
                ]
                for seeds in ranked
            ),
        ),
        "",
    ]
    return "\n".join(lines)


def _row(seeds: Sequence[Entry]) -> list[str]:
    first = seeds[0]
    name = f"[{first.model}]({first.link})" if first.link else first.model
    shares = [e.score.share_of_ceiling for e in seeds if e.score.share_of_ceiling is not None]
    numbers = sorted(entry.seed for entry in seeds if entry.seed is not None)
    trained_on = {entry.trained_on for entry in seeds if entry.trained_on is not None}
    least_and_most = sorted({min(trained_on), max(trained_on)}) if trained_on else []
    doubt = "**above the ceiling**" if any(e.score.is_above_ceiling for e in seeds) else ""
    return [
        "; ".join(filter(None, (name, doubt, first.note))),
        _accuracy(seeds),
        f"{100 * statistics.fmean(shares):.1f}" if shares else "-",
        _percent(entry.score.unambiguous for entry in seeds),
        _percent(entry.score.ambiguous for entry in seeds),
        ", ".join(map(str, numbers)) or "-",
        " to ".join(f"{number:,}" for number in least_and_most) or "-",
        _run_time(seeds),
    ]


def _run_time(seeds: Sequence[Entry]) -> str:
    """The mean time on each device: one over several devices would be that of none."""
    by_device: dict[str, list[float]] = {}
    for entry in seeds:
        times = by_device.setdefault(entry.device, [])
        if entry.seconds is not None:
            times.append(entry.seconds)
    shown = (
        ", ".join(filter(None, (_mean_seconds(times), device)))
        for device, times in by_device.items()
        if times or device
    )
    return "; ".join(shown) or "-"


def _mean_seconds(times: Sequence[float]) -> str:
    return f"{statistics.fmean(times):,.0f} s" if times else "not told"


def _accuracy(seeds: Sequence[Entry]) -> str:
    if len(seeds) == 1:
        value, low, high = (100 * number for number in seeds[0].score.whole.accuracy)
    else:
        values = [100 * entry.score.whole.accuracy.value for entry in seeds]
        value, low, high = statistics.fmean(values), min(values), max(values)
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _percent(parts: Iterable[Part | None]) -> str:
    known = [part for part in parts if part is not None and part.instances]
    return f"{100 * _mean(known):.1f}" if known else "-"


def _mean(parts: Iterable[Part]) -> float:
    return statistics.fmean(part.accuracy.value for part in parts)


def _published(rows: Sequence[dict[str, str]]) -> str:
    return "\n".join(
        [
            "## Published elsewhere",
            "",
            "Numbers that were not measured on the instances above, with what keeps them from "
            "being compared.",
            "",
            *_table(
                "source | model | accuracy | nearest variant | why it is not comparable",
                (
                    [
                        f"[{row['source']}]({row['link']})" if row.get("link") else row["source"],
                        row["model"],
                        row["accuracy"],
                        f"`{row['variant']}`",
                        row["difference"],
                    ]
                    for row in rows
                ),
            ),
            "",
        ]
    )


def _table(headings: str, rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {headings} |",
        "|" + "---|" * len(headings.split(" | ")),
        *(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows),
    ]


def _cell(text: str) -> str:
    """A text without what would end its cell or its row."""
    return " ".join(text.replace("|", "/").split())
