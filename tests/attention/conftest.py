"""One set of kernels built for the CPU serves all tests of attention."""

import pytest

from kernel_host import HostBuilds, kept_builds


@pytest.fixture(scope="session")
def builds() -> HostBuilds:
    return HostBuilds(kept_builds())
