"""`hyla doctor`: is this installation sound, how a model starts, which kernel takes a call."""

from typing import Annotated

from cyclopts import App, Parameter

from hyla.doctor import diagnose

_INIT_HELP = """Say how large each branch of a model is at the start, beside the stream it joins.

Builds the model that `hyla train` would, one for each attention, and runs it on one batch. A branch
of more than three times its stream is marked, with what to do: it drowns what the model has put
there before. One that is itself below three is not: there the stream is small. Every training run
measures the same before its first step, and says the same.

For example:

- `hyla doctor init sraven --scale paper`
- `hyla doctor init fuzzy --attention softmax hyla.silu`
- `hyla doctor init language --size small --json`: on random tokens, without --data

Exit codes: 0 measured, whatever was found; 2 wrong usage.
"""

_ATTENTION_HELP = """Say which path a call of attention takes here, why, and what would be faster.

For example:

- `hyla doctor attention --heads 16 --size 4 --tokens 37`: SRAVEN's shapes
- `hyla doctor attention --dtype bfloat16 --tokens 1 --keys 4096 --no-gradients`: decoding

In Python, `hyla.attention.explain(q, k, v, ...)` says it of tensors of your own.

Exit codes: 0 explained; 1 with --backend fused, which would raise; 2 wrong usage.
"""

doctor = App(name="doctor")
# By name: an installation with parts missing is to be examined, and `init` needs most of them.
doctor.command("hyla.commands.doctor.init:doctor_init", name="init", help=_INIT_HELP)
doctor.command(
    "hyla.commands.doctor.attention:doctor_attention", name="attention", help=_ATTENTION_HELP
)


@doctor.default
def examine(
    *,
    json: Annotated[bool, Parameter(help="Print one JSON object instead.", negative=())] = False,
) -> int:
    """Say what is installed and what runs here, and check that it computes the right numbers.

    Prints versions, devices, optional parts (and how to install them), which fused kernels run
    here or why not, and a self-check: the equations against float64, attention against the weights
    it generates, gradients against finite differences, and every kernel that runs here with its
    gradients against the equations. Takes seconds. Where cyclopts is missing, `python -m
    hyla.doctor` does the same.

    Exit codes: 0 all is well; 1 a check failed.
    """
    return diagnose(as_json=json)
