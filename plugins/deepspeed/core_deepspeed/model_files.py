"""The module in DeepSpeed's native files: all but the values of trained parameters, which are the
optimizer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint import load_checkpoint, reported_as_damage
from core_deepspeed import native_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor


def read(files: Path) -> list[dict[str, Any]]:
    """The content of each rank's file of the module, or of the only one. Nothing in it is executed.

    Raises:
        CheckpointCorruptedError: one is damaged, or holds something else than plain types and
            tensors.
    """
    from deepspeed.utils.zero_to_fp32 import get_model_state_files

    return [load_checkpoint(path) for path in get_model_state_files(str(files))]


def as_written(files: Path) -> AbstractContextManager[None]:
    """A context in which what isn't in its place in these files is reported as damage.

    Raises:
        CheckpointCorruptedError: a file holds something else than DeepSpeed writes.
    """
    return reported_as_damage(
        f"A file of the module in {str(files)!r} isn't what DeepSpeed has written"
    )


def module_of(ranks: Sequence[dict[str, Any]]) -> dict[str, Tensor | str]:
    """The content of the module's state, by the user's names.

    Returns:
        For a parameter that is trained, the name by which DeepSpeed has it; for others, and for
        buffers, the value.
    """
    first = ranks[0]
    trained = {name for group in first["param_shapes"] or () for name in group}
    module: dict[str, Tensor | str] = {}
    for name, value in first["module"].items():
        source = (first["shared_params"] or {}).get(name, name)
        module[own_name(ranks, name)] = (
            source if source in trained else _untrained(ranks, source, value)
        )
    return module


def own_name(ranks: Sequence[dict[str, Any]], name: str) -> str:
    """The user's name of what DeepSpeed calls `name`; the same if a program without core has
    written the files.
    """
    return name.removeprefix(native_files.ROUTER) if native_files.REST in ranks[0] else name


def _untrained(ranks: Sequence[dict[str, Any]], name: str, value: Tensor) -> Tensor:
    """A buffer, or a parameter that is frozen, of which at stage 3 each rank has saved its part."""
    shape = (ranks[0]["frozen_param_shapes"] or {}).get(name)
    if shape is None or value.shape == shape:
        return value
    whole = torch.cat([rank["frozen_param_fragments"][name].flatten() for rank in ranks])
    return whole[: shape.numel()].view(shape)
