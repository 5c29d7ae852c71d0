"""The scales of a run's branches before its first step: a record, and a line where one is large."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from hyla.attention.spec import RECOMMENDED, name_of, resolve_spec
from hyla.nn.scales import BranchScales, drowns
from hyla.training.run.directory import RunDirectory

INSTANCES = 32
"""Of the first batch, for each model: enough for scales, which are means over all numbers."""


class _Branch(NamedTuple):
    times: float
    scale: float
    stream: float
    name: str
    block: int


def log_branches(
    run: RunDirectory,
    names: Sequence[str],
    members: Sequence[Sequence[BranchScales]],
    *,
    attention: str,
    say: Callable[[str], None],
) -> None:
    """Log the scales of the member whose branches are largest, and say if they are too large."""
    worst = max(range(len(members)), key=lambda i: max(_branches(members[i])).times)
    blocks = members[worst]
    run.log_branch_scales({"member": names[worst], "blocks": [asdict(block) for block in blocks]})
    line = warning(blocks, attention=attention)
    if line is not None:
        say(line)


def warning(blocks: Sequence[BranchScales], *, attention: str) -> str | None:
    """Return a line on the branch that drowns its stream most, and what to do; None if none does.

    `attention` is the preset of the model that has these blocks.
    """
    large = [branch for branch in _branches(blocks) if drowns(branch.scale, branch.stream)]
    if not large:
        return None
    worst = max(large)
    return (
        f"the {worst.name} branch of block {worst.block} is {worst.scale:.3g} where the stream is "
        f"{worst.stream:.3g} ({worst.times:.3g} times) and drowns it: "
        + (_cure(attention) if worst.name == "attention" else "initialise it smaller")
    )


def _cure(attention: str) -> str:
    spec, advised = resolve_spec(attention), resolve_spec(RECOMMENDED)
    if (spec.normalisation, spec.value) == ("none", "linear"):
        return "linear attention trains all the same (see docs/findings.md)"
    try:
        cured = replace(spec, output=advised.output, gain=advised.gain)
    except ValueError:  # of a normalisation of one's own nobody knows what to expect
        cured = replace(spec, output="rms", gain=1 / 4)
    if spec == cured:
        return "docs/findings.md has what helps"
    return f"attention {name_of(cured)} keeps it small (see docs/findings.md)"


def _branches(blocks: Sequence[BranchScales]) -> Iterator[_Branch]:
    for number, block in enumerate(blocks, 1):
        yield _Branch(block.attention_ratio, block.attention, block.stream, "attention", number)
        yield _Branch(
            block.feed_forward_ratio, block.feed_forward, block.between, "feed-forward", number
        )
