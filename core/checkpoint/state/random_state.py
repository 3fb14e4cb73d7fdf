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
    """All ranks. State of Python's, NumPy's (where it is used), torch's and the device's own
    generator.

    Args:
        accelerator: of the device.
        device: the rank's own.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = saved = numpy.random.get_state(legacy=False)
        # As a tensor, so that torch.load(weights_only=True) reads the file without knowing NumPy's
        # types. And not of uint32, as it is: torch 2.13 pickles a tensor of that type, and can't
        # read it again.
        saved["state"]["key"] = torch.from_numpy(saved["state"]["key"].astype(numpy.int64))
    own = accelerator.get_rng_state(device)
    if own is not None:
        state["device"] = own
    return state


def check_random_state(state: Mapping[str, Any]) -> None:
    """Try a state of a checkpoint on generators that nothing else uses, since it is put back late.

    Raises:
        Exception: of any kind; it is none.
    """
    random.Random().setstate(_of_python(state))
    torch.Generator().set_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.RandomState().set_state(_of_numpy(state))
    if not isinstance(state.get("device", state["torch"]), torch.Tensor):
        raise TypeError("the state of a device is a tensor")
    if state.get("at_opening") is not None:
        check_random_state(state["at_opening"])


def restore_random_state(
    state: Mapping[str, Any], accelerator: Accelerator, device: torch.device
) -> None:
    """All ranks, last of all that is restored. Restore what `collect_random_state` gave on this
    rank.

    A state of another kind of device restores what they have in common.
    """
    random.setstate(_of_python(state))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(_of_numpy(state))
    current = accelerator.get_rng_state(device)
    if current is not None and "device" in state and state["device"].shape == current.shape:
        accelerator.set_rng_state(state["device"], device)


def _of_python(state: Mapping[str, Any]) -> tuple[Any, ...]:
    version, words, gauss = state["python"]
    return version, tuple(words), gauss


def _of_numpy(state: Mapping[str, Any]) -> dict[str, Any]:
    saved = state["numpy"]
    words = saved["state"]
    return {**saved, "state": {**words, "key": words["key"].numpy().astype("uint32")}}
