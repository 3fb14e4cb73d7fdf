"""States that a CheckpointIO must give back, and the comparison with what it gives."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_SHAPES = ((), (3,), (0,), (2, 0), (4, 5))
# 16 MB: a save that takes long enough to be killed in its midst.
_BALLAST = 4_000_000


def large_state(number: int) -> dict[str, Any]:
    """A state whose weights all are its number."""
    return small_state(number, torch.full((_BALLAST,), number, dtype=torch.int32))


def small_state(number: int, weight: torch.Tensor | None = None) -> dict[str, Any]:
    """A state that storage of weights alone can hold, too."""
    return {"number": number, "model": {"weight": torch.ones(3) if weight is None else weight}}


def varied_state() -> dict[str, Any]:
    """Tensors of every format and shape, and plain types, in dicts and lists."""
    tensors = {
        str(dtype): {str(shape): torch.ones(shape).to(dtype) for shape in _SHAPES}
        for dtype in _DTYPES
    }
    strided = torch.arange(12.0).view(3, 4).t()
    plain = {"int": 2**40, "float": 0.1, "none": None, "true": True, "text": "ä", "bytes": b"\0x"}
    return {
        "tensors": tensors,
        "strided": strided,
        **plain,
        "list": [1, [torch.ones(2)], {"a": "b"}],
        "empty": {},
    }


def assert_same(found: Any, expected: Any, name: str) -> None:
    """Fail where what was found isn't what was expected, or isn't on the CPU; `name` says where."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), name
        assert found.device.type == "cpu", name
        assert found.dtype == expected.dtype, name
        assert torch.equal(found, expected), name
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"keys of {name}"
        for key, value in expected.items():
            assert_same(found[key], value, f"{name}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), name
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{name}[{index}]")
    else:
        assert found == expected, name
        assert type(found) is type(expected), name
