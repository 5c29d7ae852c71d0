"""`tools/kernel_choices.py`: the table of "auto" follows what was measured."""

import json
from importlib import resources

import pytest

import kernel_choices

ROW = {"dtype": "bfloat16", "T": 1024, "H": 8, "D": 64, "pass": "fwd+bwd"}


def large(kernel: str, fused: float, reference: float | None) -> dict:
    return ROW | {"kernel": kernel, "hyla_ms": fused, "reference_ms": reference}


def test_each_kernel_has_an_entry_and_the_least_gain_counts():
    small = ROW | {"dtype": "float32", "fused_us": 50.0, "eager_us": 200.0}
    rows = [
        large("large_head", 1.0, 10.0),
        large("large_head", 0.5, 2.0),  # another attention
        large("large_head", 1.0, 9.0) | {"T": 128},
        large("large_head_plain_softmax", 1.0, 0.5),
        large("large_head", 0.1, 0.2) | {"pass": "forward"},
        large("large_head", 3.0, None) | {"T": 32768},
        small,
        small | {"dtype": "bfloat16"},
        ROW | {"pass": "decode", "kernel": "decode", "hyla_ms": 0.1},
        {"attention": "hyla", "note": "failed", "error": "dq is off"},
    ]
    found = kernel_choices.choices(rows)
    assert [(x["kernel"], x["T"], x["fused_ms"], x["reference_ms"]) for x in found] == [
        ("large_head", 1024, 0.5, 2.0),
        ("large_head", 128, 1.0, 9.0),
        ("large_head_plain_softmax", 1024, 1.0, 0.5),
        ("small_head", 1024, 0.05, 0.2),
    ]
    shipped = resources.files("hyla.attention.kernels").joinpath("measured.json").read_text()
    assert found[0].keys() == json.loads(shipped)[0].keys()


def test_files_are_read_as_one(tmp_path, monkeypatch):
    (tmp_path / "measured.json").write_text("nothing yet")
    monkeypatch.setattr(kernel_choices.resources, "files", lambda package: tmp_path)
    for name in ("large_head", "large_head_plain"):
        (tmp_path / name).write_text(json.dumps({"rows": [large(name, 1.0, 2.0)]}))
    names = [str(tmp_path / name) for name in ("large_head", "large_head_plain")]
    monkeypatch.setattr("sys.argv", ["kernel_choices.py", *names])
    kernel_choices.main()
    written = json.loads((tmp_path / "measured.json").read_text())
    assert [entry["kernel"] for entry in written] == ["large_head", "large_head_plain"]
    monkeypatch.setattr("sys.argv", ["kernel_choices.py"])
    with pytest.raises(SystemExit, match="python tools/kernel_choices"):
        kernel_choices.main()
