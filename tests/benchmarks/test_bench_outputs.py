"""`hyla bench outputs` on the host build of the kernels: what it checks, not how fast it is."""

from dataclasses import replace

import pytest
import torch

from hyla.benchmarks import attention as by_attention
from hyla.benchmarks import outputs
from hyla.benchmarks.outputs import CASES, DECODING, LARGE, SMALL
from kernel_host import needs_host_build

pytestmark = needs_host_build


@pytest.fixture
def _small(on_the_cpu, monkeypatch):
    on_the_cpu(outputs)
    monkeypatch.setattr(outputs, "_softmax_times", lambda workload: (1.0, 2.0))
    shapes = {LARGE: (2, 24, 8, 64), SMALL: (4, 8, 16, 4), DECODING: (2, 40, 8, 64)}
    small = {workload: replace(workload, shape=shape) for workload, shape in shapes.items()}
    monkeypatch.setattr(outputs, "DECODING", small[DECODING])
    cases = [replace(case, workload=small[case.workload]) for case in CASES]
    monkeypatch.setattr(outputs, "CASES", cases)


def rows(*only):
    return list(outputs.measure(torch.device("cuda"), 1.0, only=only))


@pytest.mark.usefixtures("_small")
def test_an_output_stands_beside_the_plain_one_and_softmax():
    found = rows(
        "large heads, hyla.rms4", "models, hyla.expected", "decoding, 8 × 4,096, hyla.rms4"
    )
    assert [row["attention"] for row in found] == ["hyla.rms4", "hyla.expected", "hyla.rms4"]
    assert [row.get("error") for row in found] == [None] * 3
    assert all(row["forward_over_plain"] == 1 for row in found)
    assert [row.get("fwd+bwd_over_softmax") for row in found] == [3, 3, None]


@pytest.mark.usefixtures("_small")
def test_nothing_is_timed_beside_a_wrong_one(monkeypatch):
    right = by_attention.attention

    def wrong(*tensors, attention, backend, **options):
        off = 1 + (backend == "fused" and attention == "hyla_minus_rmshead.plain")
        return off * right(*tensors, attention=attention, backend=backend, **options)

    monkeypatch.setattr(by_attention, "attention", wrong)
    (row,) = rows("large heads, hyla_minus_rmshead.rms4")
    assert "hyla_minus_rmshead.plain: output is off by 1.0e+00" in row["error"]
