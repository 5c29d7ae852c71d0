"""`hyla export`: a trained model as a program that needs no hyla."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.options import check_writable
from hyla.integrations.export import SUFFIXES, export_model, interface
from hyla.training import load_run


def export(
    run: list[Path],
    /,
    *,
    format: Literal["torch", "onnx"] = "torch",
    padding: Annotated[bool, Parameter(negative=())] = False,
    member: int = 0,
    out: Path | None = None,
) -> None:
    """Write a trained model as a program that runs without hyla, and check what was written.

    The program takes batches and sequences of any size. It computes by PyTorch's (or ONNX's) own
    operations; the fused kernels are not in it. What was written is run against the model, on
    several lengths.

    Examples:

    - `hyla export runs/fuzzy-hyla-0123456789ab`: for torch.export.load
    - `hyla export runs/language-hyla-0123456789ab --format onnx --padding --out decoder.onnx`

    Exit codes: 0 written and right; 1 the program computes something else; 2 wrong usage.

    Parameters
    ----------
    run
        Run directory of `hyla train`; its newest checkpoint is used.
    format
        torch (a program of torch.export, .pt2) or onnx.
    padding
        Let the program take a second input: a boolean [batch, tokens], False for padding.
    member
        Which model of a population, counted from 0.
    out
        File to write; by default it is named after the run, in this folder.
    """
    with usage_errors():
        if len(run) != 1:
            raise ValueError(f"hyla export takes one run, got {len(run)}: export them one by one")
        name = run[0].resolve().name + SUFFIXES[format]  # names have points inside
        path = Path(name) if out is None else out
        if path.suffix != SUFFIXES[format]:
            raise ValueError(
                f"--out {path}: a program of --format {format} ends in {SUFFIXES[format]}, and is "
                "not loaded otherwise"
            )
        check_writable(out=path.parent)
    trained = load_run(run[0])
    model = trained.model(member)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        error = export_model(model, path, format=format, padding=padding)
    print(f"{path}: runs, and differs from the model by at most {error:.0e} of the largest logit")
    members = f"member {member} of {len(trained.config.members)} (--member)"
    print(f"{interface(model.config, padding=padding)}; {members}")
