"""Whether two states are the same, to the bit and the type."""

import numpy
import torch


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        expected, found = list(expected.values()), list(found.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.layout == expected.layout
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, numpy.ndarray | numpy.generic):
        assert found.dtype == expected.dtype
        assert (found.shape, found.tobytes()) == (expected.shape, expected.tobytes())
    else:
        assert found == expected
