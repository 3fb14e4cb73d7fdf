"""The random generators of one rank, in plain types, for a checkpoint."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract.accelerator import Accelerator


def collect_random_state(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """All ranks. State of Python's, NumPy's (where it is used), torch's and the device's own generator.

    Args:
        accelerator: of the device.
        device: the rank's own.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = saved = numpy.random.get_state(legacy=False)
        # As a tensor, so that torch.load(weights_only=True) reads the file without knowing NumPy's types. And not of
        # uint32, as it is: torch 2.13 pickles a tensor of that type, and can't read it again.
        saved["state"]["key"] = torch.from_numpy(saved["state"]["key"].astype(numpy.int64))
    if (own := accelerator.get_rng_state(device)) is not None:
        state["device"] = own
    return state


def restore_random_state(state: Mapping[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """All ranks, last of all that is restored. Put back what `collect_random_state` gave on this rank.

    A state of another kind of device restores what they have in common.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        saved = state["numpy"]
        key = saved["state"]["key"].numpy().astype(numpy.uint32)
        numpy.random.set_state({**saved, "state": {**saved["state"], "key": key}})
    current = accelerator.get_rng_state(device)
    if current is not None and "device" in state and state["device"].shape == current.shape:
        accelerator.set_rng_state(state["device"], device)
