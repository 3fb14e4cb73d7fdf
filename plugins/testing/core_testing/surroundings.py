"""The settings of a process: copied to another one, put back when a test has changed them, and
compared.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

import numpy
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Settings = dict[str, Any]
"""Values by the name of the setting."""


def copy_shared() -> Settings:
    """The settings that a forked process would have from this one, in a form that pickles."""
    return {name: get() for name, (get, _) in _SHARED.items()}


def copy_all() -> Settings:
    """The settings of this process, with those that mean nothing to another one."""
    return copy_shared() | {name: get() for name, (get, _) in _OWN.items()}


def restore(settings: Settings) -> list[str]:
    """Restore what differs. Returns the names of settings that can't be."""
    known = _SHARED | _OWN
    for name, value in settings.items():
        get, set_to = known[name]
        if get() != value:
            set_to(value)
    return [name for name, value in settings.items() if known[name][0]() != value]


def _set_environment_variables(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


def _set_temporary_folder(folder: str | None) -> None:
    tempfile.tempdir = folder


def _set_warnings_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()  # Python forgets what it has shown already
    warnings.filters[:] = filters  # type: ignore[index]  # a list, which typeshed calls a sequence


def _random_state() -> tuple[Any, ...]:
    # In bytes: `==` of tuples that hold arrays has no single answer.
    kind, keys, *position = numpy.random.get_state(legacy=True)
    of_numpy = kind, numpy.asarray(keys).tobytes(), *position
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), of_numpy


def _set_random_state(state: tuple[Any, ...]) -> None:
    of_python, of_torch, (kind, keys, *position) = state
    random.setstate(of_python)
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *position))


def _default_device() -> str | None:
    # torch 2.9 can't name the default one once it was taken back
    device = str(torch.empty(0).device)
    return None if device == "cpu" else device


def _set_hook(hook: Any) -> None:
    sys.excepthook = hook


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_determinism(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _current_device() -> int | None:
    return torch.accelerator.current_device_index() if torch.accelerator.is_available() else None


def _set_current_device(index: int | None) -> None:
    if index is not None:
        torch.accelerator.set_device_index(index)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler and handler is not None:  # None: of a library in C
            signal.signal(number, handler)


_SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "environment variables": (lambda: dict(os.environ), _set_environment_variables),
    "working directory": (os.getcwd, os.chdir),
    "sys.path": (lambda: list(sys.path), _set_path),
    "temporary folder": (lambda: tempfile.tempdir, _set_temporary_folder),
    "warnings filters": (lambda: list(warnings.filters), _set_warnings_filters),
    "random state": (_random_state, _set_random_state),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (_default_device, torch.set_default_device),
    "deterministic algorithms": (_determinism, _set_determinism),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
}
_OWN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "current device": (_current_device, _set_current_device),
    "signal handlers": (_handlers, _set_handlers),
    "sys.excepthook": (lambda: sys.excepthook, _set_hook),
}
