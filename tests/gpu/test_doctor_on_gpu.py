"""`hyla doctor` where there is a GPU: every kernel that it says runs here is checked, and right."""

import pytest
import torch

from hyla.doctor.checks import run_checks
from hyla.doctor.kernels import kernel_findings

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def test_every_kernel_that_runs_is_checked():
    checks = {check.name: check for check in run_checks(CUDA)}
    assert all(check.passed for check in checks.values()), checks
    running = [finding.case for finding in kernel_findings(CUDA) if finding.kernel is not None]
    assert {f"kernel, {case}" for case in running} <= checks.keys()
    if torch.cuda.get_device_capability() >= (9, 0):
        assert len(running) == len(list(kernel_findings(CUDA)))
