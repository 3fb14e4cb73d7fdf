"""The devices of one process by named axes, and what is spread over them."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core import ConfigurationError, ModuleError
from core_xla import library

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from torch import nn

    Axis: TypeAlias = str | tuple[str, ...] | None
    """The axis, or axes, of the mesh along which one dimension of a tensor is cut; None leaves it
    whole.
    """

DATA = "data"


def sizes_of(wanted: Mapping[str, int] | None, num_devices: int) -> dict[str, int]:
    """The size of each axis, by name: a size of -1 is what the others leave.

    Raises:
        ConfigurationError: the axes don't make up the devices.
    """
    sizes = dict(wanted or {DATA: -1})
    open_axes = [name for name, size in sizes.items() if size == -1]
    if len(open_axes) == 1:
        sizes[open_axes[0]] = num_devices // math.prod(
            size for size in sizes.values() if size != -1
        )
    if any(size < 1 for size in sizes.values()) or math.prod(sizes.values()) != num_devices:
        shown = ", ".join(f"{name!r}: {size}" for name, size in (wanted or {}).items())
        raise ConfigurationError(
            f"mesh={{{shown}}} does not make up {num_devices} devices. The sizes of its axes, of "
            f"which one may be -1, have to give {num_devices} when they are multiplied."
        )
    return sizes


class XLAMesh:
    """A mesh of torch_xla, which is made when the runtime has begun.

    Attributes:
        sizes: of its axes, by name.
        of_library: the same as torch_xla has it.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        import numpy

        self.sizes = dict(sizes)
        spmd = library.torch_xla("distributed.spmd")
        num_devices = math.prod(sizes.values())
        self.of_library: Any = spmd.Mesh(
            numpy.arange(num_devices), tuple(sizes.values()), tuple(sizes)
        )
        self._mark = library.torch_xla()._XLAC._xla_mark_sharding
        self._specs: dict[tuple[Axis, ...], Any] = {}

    def spread(self, tensor: Tensor, axes: Sequence[Axis]) -> None:
        """Cut a tensor of a device along axes, one a dimension; what is computed from it
        follows.
        """
        key = tuple(axes)
        if key not in self._specs:
            self._specs[key] = self.of_library.get_op_sharding(key)
        self._mark(tensor, self._specs[key])

    def spread_batch(self, leaf: Any) -> Any:
        """Cut one tensor of a batch along its first dimension, over the axis `"data"`."""
        if isinstance(leaf, Tensor) and leaf.dim() and DATA in self.sizes:
            self.spread(leaf, (DATA, *[None] * (leaf.dim() - 1)))
        return leaf


def plan_parameters(
    module: nn.Module,
    patterns: Mapping[str, Sequence[Axis]],
    sizes: Mapping[str, int],
    *,
    shards_over_data: bool,
) -> dict[str, tuple[Axis, ...]]:
    """The axes of every parameter that is cut, by its name.

    Args:
        module: the user's.
        patterns: axes, one a dimension, by the pattern of names that they are for:
            `"layers.*.weight"`.
        sizes: of the mesh.
        shards_over_data: cut what a pattern leaves whole over the axis `"data"` too.

    Raises:
        ConfigurationError: a pattern fits no parameter, or names an axis that isn't there.
        ModuleError: a parameter has another number of dimensions, or one that can't be cut so
            often.
    """
    _check(patterns, sizes, [name for name, _ in module.named_parameters()])
    plan = {}
    for name, parameter in module.named_parameters():
        axes = next(
            (tuple(axes) for pattern, axes in patterns.items() if fnmatchcase(name, pattern)), ()
        )
        axes = axes or (None,) * parameter.dim()
        _check_dimensions(name, parameter, axes, sizes)
        if shards_over_data:
            axes = _over_data(parameter, axes, sizes)
        if any(axes):
            plan[name] = axes
    return plan


def _check(
    patterns: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int], names: Iterable[str]
) -> None:
    names = list(names)
    for pattern, axes in patterns.items():
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigurationError(
                f"parameter_shardings has {pattern!r}, and no parameter has such a name. There are "
                f"{', '.join(names)}."
            )
        if unknown := [axis for axis in _flat(axes) if axis not in sizes]:
            raise ConfigurationError(
                f"parameter_shardings cuts {pattern!r} over {unknown[0]!r}, and the mesh has "
                f"{', '.join(sizes)}. Name one of its axes, or add this one to mesh=..."
            )


def _flat(axes: Sequence[Axis]) -> list[str]:
    names: list[str] = []
    for axis in axes:
        if isinstance(axis, str):
            names.append(axis)
        elif axis is not None:
            names += axis
    return names


def _check_dimensions(
    name: str, parameter: Tensor, axes: Sequence[Axis], sizes: Mapping[str, int]
) -> None:
    if len(axes) != parameter.dim():
        raise ModuleError(
            f"{name!r} has {parameter.dim()} dimensions, and parameter_shardings has {len(axes)} "
            f"axes for it: {tuple(axes)}. Write one for each dimension, None for those that stay "
            "whole."
        )
    for dim, axis in enumerate(axes):
        parts = math.prod(sizes[one] for one in _flat([axis]))
        if parameter.shape[dim] % parts:
            raise ModuleError(
                f"{name!r} of shape {tuple(parameter.shape)} can't be cut into {parts} equal parts "
                f"along dimension {dim}, as parameter_shardings wants. Choose another dimension or "
                "axis."
            )


def _over_data(
    parameter: Tensor, axes: tuple[Axis, ...], sizes: Mapping[str, int]
) -> tuple[Axis, ...]:
    """The axes with the largest dimension that is whole so far cut over the data axis; as they are
    if none can be.
    """
    whole = [
        dim
        for dim in range(parameter.dim())
        if axes[dim] is None and parameter.shape[dim] % sizes[DATA] == 0
    ]
    if not whole or DATA in _flat(axes) or not parameter.numel():
        return axes
    chosen = max(whole, key=lambda dim: parameter.shape[dim])
    return tuple(DATA if dim == chosen else axis for dim, axis in enumerate(axes))
