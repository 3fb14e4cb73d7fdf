"""The only place that imports torch_xla: nothing of it is imported before a process begins to use
its devices.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from core import ConfigurationError, DeviceError
from core_xla.detection import NUM_CPU_DEVICES, plays_devices

_is_spread = False
"""True once this process spreads its computation over all devices, which it does to its end."""


def torch_xla(part: str = "") -> Any:
    """The library, or a module of it, such as `"runtime"`.

    Raises:
        DeviceError: it can't be imported.
    """
    try:
        return importlib.import_module(f"torch_xla.{part}" if part else "torch_xla")
    except Exception as error:  # of another release of torch, it can't load its shared library
        raise DeviceError(
            f"torch_xla can't be imported: {error!r}. It is built for one release of torch: "
            "install both with the same number, such as pip install torch==2.9.1 torch_xla==2.9.0."
        ) from error


def begin(num_devices: int, *, spmd: bool = False, debug: bool = False) -> None:
    """Start the runtime in this process, with so many devices if the processor plays them;
    idempotent.

    Args:
        num_devices: that this process is to see.
        spmd: all of them behind one, over which XLA spreads what is computed.
        debug: torch_xla says why it cuts or compiles a graph. It looks for that once.

    Raises:
        ConfigurationError: the process has begun to use them in another way.
    """
    if debug:
        os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "2")
    if plays_devices() and not has_begun():
        os.environ.setdefault(NUM_CPU_DEVICES, str(num_devices))
    runtime = torch_xla("runtime")
    if spmd:
        _spread(runtime)
    elif runtime.is_spmd() or _is_spread:
        raise ConfigurationError(
            "This process has spread its computation over all devices (xla_spmd), which torch_xla "
            "can't undo. Go on with strategy='xla_spmd', or train in another process."
        )
    seen = runtime.addressable_runtime_device_count()
    _try_backward()
    if spmd and seen != num_devices:
        raise ConfigurationError(
            f"devices={num_devices} were asked for, and this process has begun with {seen}: "
            f"torch_xla counts its devices once. Ask for {seen}, or " + _cure(num_devices)
        )


def _try_backward() -> None:
    """Note a backward on the device: torch counts its kinds of device when a process comes to its
    first one.

    Raises:
        DeviceError: that was before the runtime began.
    """
    import torch

    try:
        torch.ones((), device="xla", requires_grad=True).backward()
    except RuntimeError as error:
        if "device_ready_queues" not in str(error):
            raise
        raise DeviceError(
            "This process has computed gradients on another device already, and torch knows only "
            "the kinds of device that were there at its first backward. Train on XLA first, or in "
            "a process of its own."
        ) from error


def _cure(num_devices: int) -> str:
    if plays_devices():
        return f"set {NUM_CPU_DEVICES}={num_devices} before anything uses a device of XLA."
    return "leave devices out: xla_spmd spreads over all that are here."


def _spread(runtime: Any) -> None:
    global _is_spread
    if _is_spread:
        # torch_xla asks this variable each time, and it may have been cleared
        os.environ["XLA_USE_SPMD"] = "1"
    if runtime.is_spmd():
        _is_spread = True
        return
    if has_begun():
        raise ConfigurationError(
            "This process uses one device of XLA already, by a tensor or an earlier run, and "
            "xla_spmd has to come before: torch_xla would leave tensors where they are. Build the "
            "model on the CPU or in configure_model, and train on one device in another process."
        )
    runtime.use_spmd()
    _is_spread = True


def has_begun() -> bool:
    """True if this process has made the runtime's client, which has counted its devices."""
    return "torch_xla" in sys.modules and bool(torch_xla()._XLAC._xla_runtime_is_initialized())
