"""Exported programs compute what their models do, on other lengths and with padding."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hyla._errors import ExportError
from hyla.attention import start
from hyla.cli import main
from hyla.commands import export as command
from hyla.integrations import export
from hyla.integrations.export import export_model, interface
from hyla.nn import Transformer, TransformerConfig
from hyla.training import train
from tiny_runs import run_path, tiny_config

SIZES = {"sequence_length": 8, "embed_dim": 8, "qk_dim": 8, "v_dim": 8, "mlp_dim": 8}
SIZES |= {"num_heads": 2, "num_layers": 1}
DECODER = {"inputs": "tokens", "input_dim": 11, "output_dim": 11, "tied": True, "causal": True}
DECODER |= {"positions": "rotary", "attention": "hyla.expected2"}
ENCODER = {"input_dim": 3, "output_dim": 5, "positions": "t5", "attention": "hyla"}
OTHER = {"input_dim": 3, "output_dim": 5, "positions": "t5_bidirectional"}
OTHER |= {"attention": "hyla_deep", "feed_forward": "moe"}


def model_of(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES, **changes)).eval()


def logits(model, tokens: int, *, padded: bool):
    """A batch of a length that no check has seen, what the model makes of it, and its padding."""
    config = model.config
    x = torch.randn(4, tokens, config.input_dim)
    if config.inputs == "tokens":
        x = torch.randint(config.input_dim, (4, tokens))
    padding = torch.ones(4, tokens, dtype=torch.bool)
    if padded:
        padding[1, -2:] = False  # behind
        padding[2, :3] = False  # in front: there are queries without any key
    with torch.no_grad():
        return x, padding, model(x, mask=padding[:, None, None])


@pytest.mark.parametrize(
    ("changes", "padded"),
    [(DECODER, True), (ENCODER, False), (OTHER, True)],
    ids=["decoder padded", "encoder", "deep experts padded"],
)
def test_a_program_of_torch_export_computes_what_the_model_does(tmp_path, changes, padded):
    start._cached_moments.cache_clear()  # a program that was traced first must not fill it
    model, path = model_of(**changes), tmp_path / "model.pt2"
    assert export_model(model, path, format="torch", padding=padded) < 1e-5
    x, padding, want = logits(model, 6, padded=padded)
    program = torch.export.load(path).module()
    torch.testing.assert_close(program(x, padding) if padded else program(x), want)
    assert (
        model.get_submodule("blocks.0.attention").backend == "auto"
    )  # of the program alone it is another


@pytest.mark.parametrize(
    ("changes", "padded"), [(DECODER, True), (ENCODER, False)], ids=["decoder padded", "encoder"]
)
def test_onnxruntime_computes_what_the_model_does(tmp_path, changes, padded):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, path = model_of(**changes), tmp_path / "model.onnx"
    assert export_model(model, path, format="onnx", padding=padded) < 1e-5
    x, padding, want = logits(model, 6, padded=padded)
    session = onnxruntime.InferenceSession(path)
    inputs = {"x": x.numpy()} | ({"padding": padding.numpy()} if padded else {})
    assert [one.name for one in session.get_inputs()] == list(inputs)
    for one in (*session.get_inputs(), *session.get_outputs()):
        assert one.shape[:2] == ["batch", "tokens"]
    (got,) = session.run(["logits"], inputs)
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-5)


def test_the_weights_of_a_large_program_come_along(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from torch.onnx._internal.exporter import _onnx_program

    monkeypatch.setattr(_onnx_program, "_LARGE_MODEL_THRESHOLD", 0)  # 1.5 GiB
    model, path = model_of(**ENCODER), tmp_path / "model.onnx"
    assert export_model(model, path, format="onnx") < 1e-5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    x, _, want = logits(model, 6, padded=False)
    (got,) = onnxruntime.InferenceSession(path).run(["logits"], {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "padded", "said"),
    [
        (
            DECODER,
            True,
            "takes token ids x [batch, tokens] int64, 0 to 10 and padding [batch, tokens] bool, "
            "False for padding; gives logits [batch, tokens, 11] float32",
        ),
        (
            ENCODER,
            False,
            "takes x [batch, tokens, 3] float32; gives logits [batch, tokens, 5] float32",
        ),
    ],
    ids=["decoder padded", "encoder"],
)
def test_what_a_program_takes_and_gives_is_said(changes, padded, said):
    assert interface(TransformerConfig(**SIZES, **changes), padding=padded) == said


def test_a_program_that_is_wrong_is_refused(tmp_path, monkeypatch):
    class WrongProgram:
        def module(self):
            return lambda x: torch.full((*x.shape[:2], 5), float("nan"))

    monkeypatch.setattr(torch.export, "load", lambda path: WrongProgram())
    with pytest.raises(ExportError, match="is off by nan of the largest logit"):
        export_model(model_of(**ENCODER), tmp_path / "model.pt2", format="torch")


# --- hyla export --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(tiny_config(), root=root, device="cpu")
    return run_path(root)


def test_the_command_writes_a_program_named_after_the_run(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--member", "1", "--padding"]) == 0
    (written,) = tmp_path.iterdir()
    assert written.name == f"{run.name}.pt2"
    shown = capsys.readouterr().out
    assert "differs from the model by at most" in shown
    assert shown.endswith("; member 1 of 2 (--member)\n")
    assert torch.export.load(written).module() is not None


def test_several_runs_are_wrong_usage(run, capsys):
    assert main(["export", str(run), "other", "third", "--format", "onnx"]) == 2
    assert "takes one run, got 3" in capsys.readouterr().err


def test_a_member_that_is_not_there_is_wrong_usage(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--member", "9"]) == 2
    assert "there is no member 9" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_points_in_the_name_of_a_run_stay_and_formats_are_not_mixed_up(
    run, tmp_path, monkeypatch, capsys
):
    named: list[str] = []

    def write(model, path, **options):
        named.append(path.name)
        return 0.0

    monkeypatch.setattr(command, "export_model", write)
    loaded = SimpleNamespace(model=lambda _: model_of(**ENCODER), config=tiny_config())
    monkeypatch.setattr(command, "load_run", lambda _: loaded)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "fuzzy-hyla.expected2-0123456789ab"]) == 0
    assert named == ["fuzzy-hyla.expected2-0123456789ab.pt2"]
    assert main(["export", str(run), "--format", "onnx", "--out", "model.pt2"]) == 2
    assert "and is not loaded otherwise" in capsys.readouterr().err


def test_without_the_packages_of_onnx_the_command_says_how_to_get_them(
    run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    out = tmp_path / "model.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(out)]) == 2
    assert 'pip install -e "path/to/hyla[onnx]"' in capsys.readouterr().err


def test_a_wrong_program_is_a_failure(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    assert main(["export", str(run), "--out", str(tmp_path / "model.pt2")]) == 1
    assert "not what the model computes" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
