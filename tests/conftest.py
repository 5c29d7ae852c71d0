"""Every test starts from the same random state, on one thread: two workers share two cores."""

import pytest
import torch


def pytest_configure():
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
