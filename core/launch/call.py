"""The call that a launcher makes on every rank, on its way into processes that share no memory with
the caller's.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import sys
import types
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from core.contract import ClusterEnvironment, LaunchError
from core.launch.rank import set_rank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

_MAX_PARTS = 100  # of those that fail: each is pickled


class LaunchedCall(NamedTuple):
    """A function with its arguments, and what it finds on every rank.

    It is pickled whole, so that the function's strategy holds this same environment.

    Attributes:
        environment: is given the ranks.
        function: runs on every rank.
        args: given to it.
        kwargs: given to it by name.
        random_state: of the caller's generators, from which every rank goes on, so that the user's
            seed holds there.
    """

    environment: ClusterEnvironment
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random_state: dict[str, Any]

    @classmethod
    def of(
        cls,
        environment: ClusterEnvironment,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> LaunchedCall:
        """Main process. The call, with the state of the generators as it is now."""
        import torch

        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            state["numpy"] = numpy.random.get_state()
        return cls(environment, function, args, kwargs, state)

    def write(
        self, file: Path | IO[bytes], *, who: str, cure: str, pickle_module: ModuleType = pickle
    ) -> None:
        """Main process. Pickle the call; tensors that share memory share it again.

        Args:
            file: to write to.
            who: pickles it: the beginning of the error's message.
            cure: the end of the error's message.
            pickle_module: as `torch.save` takes it.

        Raises:
            LaunchError: a part of it can't be pickled; it is named.
        """
        named = {f"argument {index}": value for index, value in enumerate(self.args)}
        named |= {**self.kwargs, "cluster_environment": self.environment}
        receiver = getattr(self.function, "__self__", None)
        if receiver is None:
            named["function"] = self.function
        else:
            named[type(receiver).__name__.lower()] = receiver
        says = f"{who} pickles what its workers need, and {{}} can't be pickled: {{}}. {cure}"
        _save(self, file, pickle_module, named, says)

    @staticmethod
    def read(file: Path | IO[bytes]) -> LaunchedCall:
        """A rank. The call that its own main process has written: it is trusted, as any pickle has
        to be.
        """
        call: LaunchedCall = read_result(file)
        return call

    def run(self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int) -> Any:
        """A rank. Set the ranks of the environment, and call the function."""
        import torch

        self.environment.set_world(
            world_size=world_size,
            global_rank=global_rank,
            local_rank=local_rank,
            node_rank=node_rank,
        )
        set_rank(global_rank, world_size)
        random.setstate(self.random_state["python"])
        torch.set_rng_state(self.random_state["torch"])
        if "numpy" in self.random_state:
            import numpy

            numpy.random.set_state(self.random_state["numpy"])
        return self.function(*self.args, **self.kwargs)


def write_result(
    outcome: object, file: Path | IO[bytes], *, pickle_module: ModuleType = pickle
) -> None:
    """Rank 0. Pickle what the function has returned, for the caller, who reads it with its tensors
    on the CPU.

    Raises:
        LaunchError: a part of it doesn't pickle; it is named.
    """
    says = (
        "What the function returns on rank 0 is pickled for the caller, and {} can't be: {}. "
        "Return tensors and plain values, and save what is larger or in parts with a checkpoint."
    )
    _save(outcome, file, pickle_module, {"result": outcome}, says)


def read_result(file: Path | IO[bytes]) -> Any:
    """Main process. What rank 0 has written; its tensors are on the CPU."""
    import torch

    # written by a process of our own
    return torch.load(file, map_location="cpu", weights_only=False)


def _save(
    value: object,
    file: Path | IO[bytes],
    pickle_module: ModuleType,
    named: dict[str, Any],
    says: str,
) -> None:
    import torch

    try:
        torch.save(value, file, pickle_module=pickle_module)
    except Exception as error:
        path, cause = _find_unpicklable(named, pickle_module) or ("a part of it", error)
        raise LaunchError(says.format(path, str(cause).rstrip("."))) from error


def _find_unpicklable(
    named: dict[str, Any], pickle_module: ModuleType
) -> tuple[str, Exception] | None:
    """The path to the innermost part that can't be pickled, such as
    `"strategy._ddp_options['hook']"`, and its error.
    """
    seen: set[int] = set()
    todo = [*named.items()]
    found = None
    while todo and len(seen) < _MAX_PARTS:
        path, value = todo.pop()
        seen.add(id(value))
        error = _error_of(value, pickle_module)
        if error is None:
            continue
        failing = [
            (path + name, part)
            for name, part in _parts(value)
            if _error_of(part, pickle_module) is not None
        ]
        if not failing:
            return path, error
        # One that was seen refers to this one, and fails because of another part.
        todo += [(name, part) for name, part in failing if id(part) not in seen]
        found = found or (path, error)
    return found


def _error_of(value: object, pickle_module: ModuleType) -> Exception | None:
    import torch

    try:
        torch.save(value, _Discard(), pickle_module=pickle_module)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif not isinstance(value, types.FunctionType | type):
        with contextlib.suppress(Exception):
            state: Any = value.__getstate__()  # what a class leaves out isn't to blame
            yield from ((f".{name}", part) for name, part in state.items())


class _Discard(io.BytesIO):
    """A file that discards its content, so that the check of a large model needs no memory."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes
