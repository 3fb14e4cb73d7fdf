"""A digest sees each bit of a tensor, and its place."""

import pytest
import torch

from core.session.digests import digest_of
from support.flips import flip


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.bool,
        torch.complex64,
    ],
)
def test_a_digest_sees_each_flipped_bit(dtype):
    tensor = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    real = torch.view_as_real(tensor) if dtype.is_complex else tensor
    before, num_bits = digest_of(tensor), 1 if dtype == torch.bool else 8 * real.element_size()
    for place in range(real.numel()):
        for bit in range(num_bits):
            flip(real, place, bit)
            assert digest_of(tensor) != before
            flip(real, place, bit)
    assert digest_of(tensor) == before


def test_a_digest_is_of_bits_in_logical_order():
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    assert digest_of(tensor.transpose(0, 2).contiguous().transpose(0, 2)) == digest_of(tensor)
    assert digest_of(tensor.flip(0)) != digest_of(tensor)
    assert digest_of(-torch.ones(2, dtype=torch.float64)) != digest_of(
        torch.ones(2, dtype=torch.float64)
    )
    assert digest_of(torch.tensor([0.0])) != digest_of(torch.tensor([-0.0]))
    two_nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert digest_of(two_nans[:1]) != digest_of(two_nans[1:])


def test_a_digest_sees_the_place_in_a_large_tensor():
    digests = set()
    for place in (0, (1 << 20) - 1, 1 << 20, (1 << 21) + 2):
        large = torch.zeros((1 << 21) + 3)
        large[place] = 1.0
        digests.add(int(digest_of(large)))
    assert len(digests) == 4
