"""Parameters of all members, as the kernels of blocks want them."""

import pytest
import torch

from hyla.training.population.blocks.parameters import with_one_stride


def test_a_single_member_is_taken_as_it_lies_whatever_its_strides_say():
    row = torch.randn(1, 20)
    given = [row[:, :12].view(1, 3, 4), row[:, 12:].as_strided((1, 8), (8, 1), 12)]
    taken, _ = with_one_stride(given)
    assert [x.data_ptr() for x in taken] == [x.data_ptr() for x in given]


@pytest.mark.parametrize("members", [1, 3])
def test_what_lies_apart_is_gathered(members: int):
    apart = [torch.randn(4, members, 3).permute(1, 2, 0), torch.randn(members, 5)]
    taken, stride = with_one_stride(apart)
    assert all(torch.equal(x, y) for x, y in zip(taken, apart, strict=True))
    assert all(x[0].is_contiguous() for x in taken)
    assert members == 1 or {x.stride(0) for x in taken} == {stride}


def test_views_of_one_matrix_are_taken_as_they_lie():
    matrix = torch.randn(3, 20)
    given = [matrix[:, :12].view(3, 3, 4), matrix[:, 12:]]
    taken, stride = with_one_stride(given)
    assert stride == 20
    assert [x.data_ptr() for x in taken] == [x.data_ptr() for x in given]
