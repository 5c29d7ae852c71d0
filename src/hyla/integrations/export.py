"""A trained model as a program that needs no hyla: torch.export, and ONNX.

What is exported is the reference path, PyTorch's own operations alone: the fused kernels stay
behind. Batch and length are free.
"""

import contextlib
import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hyla._errors import ExportError
from hyla._optional import needed
from hyla.nn import Transformer, TransformerConfig

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}

# Of what goes in and of the logits, by position.
_FREE_AXES = {0: "batch", 1: "tokens"}

# Of the largest logit. Both programs add up in another order than the model, no more.
TOLERANCE = 1e-3


def export_model(model: Transformer, path: Path, *, format: str, padding: bool = False) -> float:
    """Write `model` to `path`, run what was written, and return its largest error.

    The program takes `x`, vectors [B, T, input_dim] or token ids [B, T], and with `padding` a
    boolean [B, T], True for tokens and False for padding, which no token then attends to. It
    returns `logits` [B, T, output_dim]. The error is a share of the largest logit, over several
    lengths, some of them padded.

    Raises:
        ExportError: the program computes something else than the model.
    """
    onnxruntime = _onnxruntime() if format == "onnx" else None
    program = _Program(model, padding).eval()
    exported = _exported(program)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # only what is right gets its name
        draft = Path(folder) / path.name
        if onnxruntime is None:
            draft.write_bytes(_serialised(exported))
        else:
            _write_onnx(exported, draft, padded=padding)
        run = _opened(draft, onnxruntime)
        error = max(_error(program, run, inputs) for inputs in _examples(program))
        if not error <= TOLERANCE:  # also NaN
            raise ExportError(
                f"the program is off by {error:.1e} of the largest logit, and not what the model "
                f"computes: {path} is not written"
            )
        del run
        # Of a large program, ONNX has the weights in a second file: that goes first.
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == draft):
            file.replace(path.with_name(file.name))
    if not _error(program, _opened(path, onnxruntime), next(_examples(program))) <= TOLERANCE:
        raise ExportError(f"{path} is not the program that was written: export it again")
    return error


def interface(config: TransformerConfig, *, padding: bool = False) -> str:
    """Say what the program of such a model takes and gives: names, axes, dtypes."""
    if config.inputs == "tokens":
        takes = f"token ids x [batch, tokens] int64, 0 to {config.input_dim - 1}"
    else:
        takes = f"x [batch, tokens, {config.input_dim}] float32"
    if padding:
        takes += " and padding [batch, tokens] bool, False for padding"
    return f"takes {takes}; gives logits [batch, tokens, {config.output_dim}] float32"


def _serialised(exported: torch.export.ExportedProgram) -> bytes:
    """Return the file of a program: PyTorch, which writes it from C++, aborts on a full disk."""
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    return buffer.getvalue()


def _opened(path: Path, onnxruntime: Any) -> Callable[..., Tensor]:
    """Return what was written as a function; without ONNX's runtime, a program of torch.export."""
    if onnxruntime is None:
        return torch.export.load(path).module()
    return _onnx_session(onnxruntime, path)


class _Program(nn.Module):
    """A model on the reference path, with key padding as its only mask."""

    def __init__(self, model: Transformer, padded: bool):
        super().__init__()
        self.model = copy.deepcopy(model).cpu()
        self.padded = padded
        for block in self.model.blocks:
            block.attention.backend = "reference"  # pyright: ignore

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.model(x, mask=None if padding is None else padding[:, None, None, :])

    def inputs(self, batch: int, tokens: int) -> tuple[Tensor, ...]:
        """Draw a batch; with padding, the first sequence ends after two thirds."""
        config, draw = self.model.config, torch.Generator().manual_seed(tokens)
        if config.inputs == "tokens":
            x = torch.randint(config.input_dim, (batch, tokens), generator=draw)
        else:
            x = torch.randn(batch, tokens, config.input_dim, generator=draw)
        if not self.padded:
            return (x,)
        padding = torch.ones(batch, tokens, dtype=torch.bool)
        padding[0, tokens - tokens // 3 :] = False
        return x, padding


def _exported(program: _Program) -> torch.export.ExportedProgram:
    axes = {axis: torch.export.Dim(name, min=1) for axis, name in _FREE_AXES.items()}
    shapes = {"x": axes} | ({"padding": axes} if program.padded else {})
    return torch.export.export(program, program.inputs(2, 5), dynamic_shapes=shapes)


def _examples(program: _Program) -> Iterator[tuple[Tensor, ...]]:
    longest = program.model.config.sequence_length
    for batch, tokens in ((1, 1), (3, 7), (2, longest), (1, longest + 3)):
        yield program.inputs(batch, tokens)


@torch.no_grad()
def _error(program: _Program, run: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> float:
    want = program(*inputs)
    return float((run(*inputs) - want).abs().max() / want.abs().max())


def _write_onnx(exported: torch.export.ExportedProgram, path: Path, *, padded: bool) -> None:
    # The exporter forgets the names of free axes; those of the padding are the same.
    names = {"x": _FREE_AXES} | ({"padding": {}} if padded else {})
    with _quiet():
        made = torch.onnx.export(
            exported,
            dynamo=True,
            verbose=False,
            output_names=["logits"],
            dynamic_shapes=names,
            # Its optimiser takes the small constant of RMSHead for 0, and masked pairs for NaN.
            optimize=False,
        )
    assert made is not None
    made.save(path)


def _onnx_session(onnxruntime: Any, path: Path) -> Callable[..., Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        arrays = (x.numpy() for x in inputs)
        return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run


def _onnxruntime() -> Any:
    """Import what ONNX needs before the work that would be in vain without."""
    with needed("onnx", "ONNX needs packages of its own"):
        import onnxruntime  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]
    return onnxruntime


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what PyTorch's exporter says about itself, and about packages nobody needs."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(level)
