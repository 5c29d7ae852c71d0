"""`hyla doctor`: is this installation sound, and what runs here."""

from typing import Annotated

from cyclopts import Parameter

from hyla.doctor import diagnose


def doctor(
    *,
    json: Annotated[bool, Parameter(help="Print one JSON object instead.", negative=())] = False,
) -> int:
    """Say what is installed and what runs here, and check that it computes the right numbers.

    Prints versions, devices, optional parts (and how to install them), which fused kernels run
    here or why not, and a self-check: the equations against float64, attention against the weights
    it generates, gradients against finite differences and, on a GPU, every kernel with its
    gradients against the equations. Takes seconds. Where cyclopts is missing, `python -m
    hyla.doctor` does the same.

    Exit codes: 0 all is well; 1 a check failed.
    """
    return diagnose(as_json=json)
