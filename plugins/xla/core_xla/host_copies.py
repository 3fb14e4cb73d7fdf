"""Copies of a state on the host: a canonical state is plain, whatever graph its tensors wait
for.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from core.data import map_leaves
from core_xla import library


def on_host(state: Any) -> Any:
    """The state with every tensor of a device copied to the host; sharded ones come whole. Others
    stay as they are.

    What they wait for is computed as one graph, without a step of the device's random numbers.
    """
    waiting: list[Tensor] = []

    def note(leaf: Any) -> Any:
        if _is_on_device(leaf):
            waiting.append(leaf)
        return leaf

    map_leaves(note, state)
    if waiting:
        library.torch_xla()._XLAC._xla_sync_multi(
            waiting, devices=[], wait=True, sync_xla_data=True
        )
    return map_leaves(lambda leaf: leaf.detach().cpu() if _is_on_device(leaf) else leaf, state)


def _is_on_device(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type == "xla"
