"""DeepSpeed's own layout of a checkpoint, for its own tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import CheckpointError
from core_deepspeed import library, model_files, native_files
from core_deepspeed.native_files import DeepSpeedFolderIO
from core_deepspeed.universal import UniversalCheckpointIO

if TYPE_CHECKING:
    from torch import Tensor

    from core import Collectives, PathLike
    from core_deepspeed.engine import ZeroEngine
    from core_deepspeed.strategy import DeepSpeedStrategy


class NativeCheckpointIO(DeepSpeedFolderIO):
    """Folders that DeepSpeed's engine has written. Only the engine can write them; one process can
    read the weights.

    A folder is not written whole or not at all, nor does it have digests, and DeepSpeed reads it
    with pickle: load none that you don't trust. It goes on under the same stage and number of
    processes only; `UniversalCheckpointIO` makes of it what goes on under any.
    """

    last_file = "latest"
    how_to_save = (
        "DeepSpeed's own layout is written by its engine: use "
        "DeepSpeedStrategy(deepspeed_checkpoint='native')."
    )

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The weights in float32, by the user's names, put together by DeepSpeed's `zero_to_fp32`.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointError: DeepSpeed can't read it.
        """
        files = self.files_of(path)
        library.load()
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        try:
            ranks = model_files.read(files)
            with native_files.quietly():
                # At stage 0 each rank has all weights, and there is nothing to put together.
                weights = (
                    get_fp32_state_dict_from_zero_checkpoint(str(path))
                    if ranks[0].get("param_shapes")
                    else {}
                )
        except CheckpointError:
            raise
        except Exception as error:  # whatever DeepSpeed and pickle raise
            raise CheckpointError(
                f"DeepSpeed can't put together the weights of {str(path)!r}: {library.cause(error)}"
            ) from error
        with model_files.as_written(files):
            model = {model_files.own_name(ranks, name): weight for name, weight in weights.items()}
            return {"model": {**_untrained(ranks), **model}}


def _untrained(ranks: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Buffers and frozen parameters in float32, the second of which `zero_to_fp32` forgets at stage
    1.
    """
    values = model_files.module_of(ranks).items()
    return {
        name: value.float() if value.is_floating_point() else value
        for name, value in values
        if not isinstance(value, str)
    }


class EngineCheckpointIO(NativeCheckpointIO):
    """The same folders, of a strategy whose engine is there to write and restore them."""

    saves_from_all_ranks = True

    def __init__(self, strategy: DeepSpeedStrategy) -> None:
        self._strategy = strategy

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write what the engine holds, by the engine, and beside it the state, in which marks stand
        for that.

        Raises:
            CheckpointError: there isn't one engine that holds an optimizer.
        """
        engine = _engine(self._strategy)
        engine.wrapped.save_checkpoint(
            str(path), tag=native_files.TAG, client_state={native_files.REST: state}
        )

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Restore what the engine holds; the rest of the state is returned. Or the whole of a
        universal checkpoint.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointError: another stage or number of processes has written it.
        """
        universal = UniversalCheckpointIO()
        if universal.exists(path):
            return universal.load_checkpoint(path, collectives=collectives)
        self.files_of(path)
        try:
            _, rest = _engine(self._strategy).wrapped.load_checkpoint(str(path))
        except Exception as error:  # DeepSpeed's own, assertions among them
            raise CheckpointError(
                f"DeepSpeed can't load {str(path)!r}: {library.cause(error).rstrip('. ')}. Its own "
                "layout loads under the stage and the number of processes that have written it. "
                "For others make a universal checkpoint of it: core checkpoint convert "
                f"{str(path)!r} TARGET --to deepspeed_universal."
            ) from error
        if not isinstance(rest, dict) or native_files.REST not in rest:
            raise CheckpointError(
                f"{str(path)!r} wasn't written through core: DeepSpeed's files don't hold the rest "
                "of a run's state. Read its weights: core checkpoint convert --from "
                "deepspeed_native SOURCE TARGET."
            )
        rest_of_state: dict[str, Any] = self._strategy.broadcast(rest[native_files.REST])
        return rest_of_state


def _engine(strategy: DeepSpeedStrategy) -> ZeroEngine:
    engines = [engine for engine in strategy.engines if engine.optimizer is not None]
    if len(engines) != 1:
        raise CheckpointError(
            "deepspeed_checkpoint='native' is for one module with its optimizer; here are "
            f"{len(engines)}. Leave the option out, or read the weights: core checkpoint convert "
            "--from deepspeed_native SOURCE TARGET."
        )
    return engines[0]
