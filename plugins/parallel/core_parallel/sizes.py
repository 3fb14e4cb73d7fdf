"""The sizes of the mesh's axes, derived from what the user said and the number of processes."""

from __future__ import annotations

from typing import Any, Literal

from core import ConfigurationError

Size = int | Literal["auto"]


def parse(name: str, size: Any) -> int | None:
    """A size, or None if it is to be derived.

    Raises:
        ConfigurationError: it is neither a positive number nor `"auto"`.
    """
    if size == "auto":
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(f"{name}={size!r}: expected a positive number, or 'auto'.")
    return size


def mesh_shape(pipeline: int | None, data: int | None, world_size: int) -> tuple[int, int]:
    """Sizes of the axes pipeline and data, whose product is the number of processes.

    Args:
        pipeline: stages' ranks of one pipeline; None is what data leaves over.
        data: shares of the data; None is what pipeline leaves over.
        world_size: number of processes.

    Raises:
        ConfigurationError: the sizes don't multiply to it; with the nearest that do.
    """
    if pipeline is None:
        pipeline = max(1, world_size // (data or 1))
    if data is None:
        data = max(1, world_size // pipeline)
    if pipeline * data == world_size:
        return pipeline, data
    sizes = [(size, world_size // size) for size in range(1, world_size + 1) if world_size % size == 0]
    nearest = min(sizes, key=lambda shape: (abs(shape[0] - pipeline) + abs(shape[1] - data), -shape[0]))
    raise ConfigurationError(
        f"pipeline={pipeline} and data={data} make {pipeline * data} processes, and there are {world_size}. "
        f"The nearest sizes that multiply to that are pipeline={nearest[0]} and data={nearest[1]}."
    )
