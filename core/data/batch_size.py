"""The number of samples in a batch of any structure."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from core.data.structure import field_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SINGLE = (str, bytes, Number)
_CHANNELS = (1, 3, 4)
"""The first dimension of an image."""
_MANY = 8
"""Tensors of one shape in a list, from which on they are rather samples than parts of a batch."""


def size_of(batch: object) -> int | None:
    """Number of samples; None if it is unknown.

    An object of another library says it itself, by `num_graphs` or `batch_size`. Else it is the
    first dimension of the first tensor or array that has one, in mappings, lists, tuples,
    dataclasses and attrs classes. A number, a string or a tensor without dimensions is one sample.
    """
    if isinstance(batch, _SINGLE) or (isinstance(batch, Tensor) and not batch.dim()):
        return 1
    return next(_sizes_in(batch), None)


def is_ambiguous(batch: object) -> bool:
    """True if `size_of` may be wrong: tensors differ in their first dimension, or are samples in a
    list.
    """
    return len(set(_sizes_in(batch))) > 1 or _holds_samples(batch)


def _holds_samples(batch: object) -> bool:
    """True if a list looks like samples that nobody has stacked: images, or more tensors than a
    batch has parts.
    """
    parts = list(_parts_of(batch))
    shapes = {part.shape for part in parts if isinstance(part, Tensor) and not part.is_nested}
    are_alike = len(shapes) == 1 and all(isinstance(part, Tensor) for part in parts)
    if isinstance(batch, Mapping) or not are_alike or len(parts) < 2:
        containers = (part for part in parts if isinstance(part, list | tuple | Mapping))
        return any(map(_holds_samples, containers))
    shape = shapes.pop()
    is_image = len(shape) == 3 and shape[0] in _CHANNELS
    return is_image or (len(parts) >= _MANY and len(shape) > 0)


def _sizes_in(batch: object) -> Iterator[int]:
    """The sizes that the parts of a batch state, in order."""
    declared = _declared_size(batch)
    if declared is not None:
        yield declared
        return
    for part in _parts_of(batch):
        if not isinstance(part, _SINGLE):
            yield from _sizes_in(part)


def _declared_size(batch: Any) -> int | None:
    if type(batch) in (dict, list, tuple):
        return None
    if isinstance(batch, Tensor):
        if not batch.dim():
            return None
        return batch.size(0)
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])  # on the CPU always
    # PyTorch Geometric's batches have the first, TensorDicts and others the second, arrays of NumPy
    # and JAX the third.
    for name in ("num_graphs", "batch_size", "shape"):
        try:
            size = getattr(batch, name)
            if not isinstance(size, int):
                size = size[0]
        except Exception:  # a property of the batch's class, which may fail
            continue
        if type(size) is int:
            return size
    return None


def _parts_of(batch: object) -> Iterable[object]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    return [getattr(batch, name) for name in field_names(batch) or ()]
