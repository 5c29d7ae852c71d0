"""`hyla doctor` where there is a GPU: every kernel that it says runs here is checked, and right."""

import pytest
import torch

from hyla.doctor.checks import run_checks
from hyla.doctor.kernels import kernel_findings

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def test_the_self_check_passes():
    checks = list(run_checks(CUDA))
    assert not [check for check in checks if not check.passed]
    running = [finding.case for finding in kernel_findings(CUDA) if finding.kernel is not None]
    assert sum(check.name.startswith("kernel, ") for check in checks) == len(running)
    if torch.cuda.get_device_capability() >= (9, 0):
        assert len(running) == len(list(kernel_findings(CUDA)))
