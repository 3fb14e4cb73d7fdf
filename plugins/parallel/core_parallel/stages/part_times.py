"""The time that each part of a model takes, measured where it was built, so that stages take about
as long.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core import ConfigurationError, CoreError, ModuleError
from core_parallel.modules import own_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core import Strategy

_REPEATS = 4


def agreed(strategy: Strategy, user: nn.Module, modules: Sequence[nn.Module]) -> list[float]:
    """All ranks. The seconds of rank 0; see `measure`.

    Raises:
        ModuleError: rank 0 can't measure them.
    """
    seconds: Any = None
    message = None
    if strategy.global_rank == 0:
        try:
            seconds = measure(user, modules)
        except CoreError as error:
            message = str(error)
    seconds, message = strategy.broadcast((seconds, message))
    if message is not None:
        raise ModuleError(message)
    return list(seconds)


def measure(user: nn.Module, modules: Sequence[nn.Module]) -> list[float]:
    """The seconds from the call of each module to that of the next one, in forward: the least of
    several runs.

    Args:
        user: the user's module, with an `example_input_array`, the arguments of its forward.
        modules: the parts of the model, in the order in which they are called.

    Raises:
        ModuleError: its forward calls them otherwise.
        ConfigurationError: it has no example.
    """
    args, kwargs = _example(user)
    runs = []
    with torch.no_grad(), own_state.buffers_kept(user), torch.random.fork_rng([]):
        for _ in range(_REPEATS):
            with _calls(modules) as calls:
                user(*args, **kwargs)
                calls.append((None, perf_counter()))
            if [part for part, _ in calls[:-1]] != list(modules):
                raise ModuleError(
                    f"balance='time' runs {type(user).__name__} on its example_input_array, and "
                    f"its forward called {len(calls) - 1} parts, where {len(modules)} were "
                    "expected, each in its turn. Let forward call the model that is cut; or "
                    "balance it by 'parameters'."
                )
            runs.append([after - before for (_, before), (_, after) in pairwise(calls)])
    return [min(column) for column in zip(*runs, strict=True)]


def _example(user: nn.Module) -> tuple[Any, dict[str, Any]]:
    example = getattr(user, "example_input_array", None)
    if example is None:
        raise ConfigurationError(
            f"balance='time' runs {type(user).__name__} on an example, and it has none. Set its "
            "example_input_array to the arguments of forward (a tensor, a tuple, or a dict), as "
            "large as those of a microbatch."
        )
    if isinstance(example, dict):
        return (), example
    return (example,) if isinstance(example, Tensor) else tuple(example), {}


@contextmanager
def _calls(modules: Sequence[nn.Module]) -> Iterator[list[tuple[Any, float]]]:
    """A context in which calls of modules are noted, with the time at which they begin."""
    calls: list[tuple[Any, float]] = []
    handles = [
        module.register_forward_pre_hook(lambda part, _: calls.append((part, perf_counter())))
        for module in dict.fromkeys(modules)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
