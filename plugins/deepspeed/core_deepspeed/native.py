"""DeepSpeed's own layout of a checkpoint, for its own tools."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import CheckpointError, CheckpointIO, CheckpointNotFoundError
from core_deepspeed import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core import Collectives, PathLike
    from core_deepspeed.strategy import DeepSpeedStrategy

_TAG, _LATEST = "core", "latest"
_REST, _INSIDE, _ROUTER = "core", "in DeepSpeed's files", "module."


class NativeCheckpointIO(CheckpointIO):
    """Folders that DeepSpeed's engine has written. Only the engine can write them; one process can read the weights.

    A folder is not written whole or not at all, nor does it have digests, and DeepSpeed reads it with pickle: load none
    that you don't trust. It goes on under the same stage and number of processes only.
    """

    def save_checkpoint(self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives) -> None:
        """Refused: see `DeepSpeedStrategy(deepspeed_checkpoint="native")`.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError(
            "DeepSpeed's own layout is written by its engine: use DeepSpeedStrategy(deepspeed_checkpoint='native')."
        )

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The weights in float32, by the user's names, put together by DeepSpeed's `zero_to_fp32`.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointError: DeepSpeed can't read it.
        """
        _check_there(path)
        library.load()
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        try:
            with _without_monitor():
                weights = get_fp32_state_dict_from_zero_checkpoint(str(path))
        except Exception as error:  # whatever DeepSpeed and pickle raise
            raise CheckpointError(f"DeepSpeed can't put together the weights of {str(path)!r}: {error}") from error
        return {"model": {name.removeprefix(_ROUTER): weight for name, weight in weights.items()}}

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the folder at `path`. Nothing happens if it is not there.

        Raises:
            CheckpointError: something else is there.
        """
        if collectives.rank == 0 and Path(path).exists():
            if not self.exists(path):
                raise CheckpointError(f"{str(path)!r} is not a checkpoint of DeepSpeed's. It is left alone.")
            shutil.rmtree(path)
        collectives.barrier()

    def exists(self, path: PathLike) -> bool:
        """Whether DeepSpeed has finished writing at `path`."""
        return (Path(path) / _LATEST).is_file()


@contextmanager
def _without_monitor() -> Iterator[None]:
    """In which DeepSpeed's progress bar makes no thread, which would stay and keep this process from forking."""
    from tqdm import tqdm

    interval, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = interval


def save(strategy: DeepSpeedStrategy, path: PathLike, state: Mapping[str, Any]) -> None:
    """All ranks. Let the engine write what it holds, and beside it the rest of a state.

    Raises:
        CheckpointError: there isn't one engine that holds an optimizer.
    """
    _engine(strategy).save_checkpoint(str(path), tag=_TAG, client_state={_REST: _without_engine(strategy, dict(state))})


def read(strategy: DeepSpeedStrategy, path: PathLike) -> dict[str, Any]:
    """All ranks. Let the engine restore what it holds; the rest of the state.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointError: another stage or number of processes has written it.
    """
    _check_there(path)
    try:
        _, rest = _engine(strategy).load_checkpoint(str(path))
    except Exception as error:  # DeepSpeed's own, assertions among them
        raise CheckpointError(
            f"DeepSpeed can't load {str(path)!r}: {error}. Its own layout loads under the stage and the number of "
            "processes that have written it; leave deepspeed_checkpoint out for checkpoints that load under any."
        ) from error
    state: dict[str, Any] = strategy.broadcast(rest[_REST])
    return state


def is_inside(state: Any) -> bool:
    """Whether a state says only that the engine has restored it already."""
    return isinstance(state, dict) and _INSIDE in state


def _engine(strategy: DeepSpeedStrategy) -> Any:
    engines = [engine.wrapped for engine in strategy.engines if engine.optimizer is not None]
    if len(engines) != 1:
        raise CheckpointError(
            f"deepspeed_checkpoint='native' is for one module with its optimizer; here are {len(engines)}. "
            "Leave the option out, or read the weights: core checkpoint convert --from deepspeed_native SOURCE TARGET."
        )
    return engines[0]


def _without_engine(strategy: DeepSpeedStrategy, value: Any) -> Any:
    held = [one for handle in strategy.handles for one in (handle.module, handle.wrapped)] + strategy.optimizers
    if any(value is one for one in held):
        return {_INSIDE: True}
    if callable(method := getattr(value, "state_dict", None)):
        return method()
    if isinstance(value, dict):
        return {key: _without_engine(strategy, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_engine(strategy, item) for item in value]
    return value


def _check_there(path: PathLike) -> None:
    if not (Path(path) / _LATEST).is_file():
        raise CheckpointNotFoundError(f"No checkpoint of DeepSpeed's is at {str(path)!r}.")
