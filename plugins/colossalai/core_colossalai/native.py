"""Checkpoints in Colossal-AI's own layout, which its Booster writes."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from core import CheckpointError
from core.checkpoint import TorchCheckpointIO, load_checkpoint
from core_colossalai import library, native_files
from core_colossalai.native_files import ColossalAICheckpointIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core import Collectives, PathLike
    from core_colossalai.engine import Engine
    from core_colossalai.strategy import ColossalAIStrategy


class BoosterCheckpointIO(ColossalAICheckpointIO):
    """The folders of a strategy whose Booster is there to write them; whole or not at all.

    A checkpoint in core's own form is read too. Paths are local.
    """

    saves_from_all_ranks = True

    def __init__(self, strategy: ColossalAIStrategy) -> None:
        self._strategy = strategy

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write what the Booster has boosted, by the Booster, and beside it the state, in which
        marks stand for that.

        Raises:
            CheckpointError: it can't be written, or something else is there, which is left alone.
        """
        if "://" in str(path):
            raise CheckpointError(
                f"{str(path)!r}: Colossal-AI writes to local paths only. Name one."
            )
        target = Path(path).absolute()
        beside = target.with_name(f".{target.name}.{collectives.broadcast_object(uuid4().hex)}")
        try:
            _together(collectives, partial(self._begin, target, beside), is_alone=True)
            for mark in native_files.marks_in(state):
                _together(collectives, partial(self._write, mark, beside))
            own = state if collectives.rank == 0 else None
            TorchCheckpointIO().save_checkpoint(
                own, beside / native_files.REST, collectives=collectives
            )
            _together(collectives, partial(_put_in_place, beside, target), is_alone=True)
        finally:
            if collectives.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)

    def _begin(self, target: Path, beside: Path) -> None:
        self.refuse_other(target)
        beside.mkdir(parents=True)

    def _write(self, mark: Mapping[str, Any], folder: Path) -> None:
        """All ranks. Write one module or optimizer by the Booster."""
        strategy = self._strategy
        name = native_files.name_of(mark)
        place = str(folder / name)
        booster = strategy.own_booster()
        if native_files.GROUPS not in mark:
            booster.save_model(_model(strategy, name), place, shard=True)
            return
        # In one file where tensors are whole: Colossal-AI 0.5 can't load a state in several on a
        # CPU, and can't write those of ZeRO while a parameter has no state, as with SGD.
        booster.save_optimizer(_optimizer(strategy, name), place, shard=not strategy.saves_whole)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The whole state; of Gemini and the hybrid plugin with marks that say where the Booster
        finds it.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: a file is missing or damaged.
        """
        if not self.exists(path):
            return load_checkpoint(path)
        if self._strategy.engine is None or self._strategy.saves_whole:
            return super().load_checkpoint(path, collectives=collectives)
        placed: dict[str, Any] = native_files.with_marks(
            self.rest(path), lambda mark: {**mark, "folder": str(path)}
        )
        return placed


def load_model(engine: Engine, mark: Mapping[str, Any], *, strict: bool) -> None:
    """All ranks. Load a model that the Booster has written.

    Raises:
        CheckpointError: it can't.
    """
    place = f"{mark['folder']}/{native_files.name_of(mark)}"
    _load(place, partial(engine.booster.load_model, engine.wrapped, place, strict=strict))


def load_optimizer(engine: Engine, mark: Mapping[str, Any]) -> None:
    """All ranks. Load an optimizer that the Booster has written.

    Raises:
        CheckpointError: it can't.
    """
    place = f"{mark['folder']}/{native_files.name_of(mark)}"
    _load(place, partial(engine.booster.load_optimizer, engine.boosted, place))


def _load(place: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except Exception as error:  # Colossal-AI's own, assertions among them
        raise CheckpointError(f"Colossal-AI can't load {place!r}: {error}") from error


def _model(strategy: ColossalAIStrategy, name: str) -> Any:
    """Colossal-AI's model of these files: the engine's, or a wrapper that the Booster takes for
    one.
    """
    if strategy.engine is not None:
        return strategy.engine.wrapped
    names = (
        native_files.numbered(native_files.MODEL, index)
        for index in range(len(strategy.session.handles))
    )
    modules = dict(zip(names, (handle.module for handle in strategy.session.handles), strict=True))
    return library.load("colossalai.interface").ModelWrapper(modules[name])


def _optimizer(strategy: ColossalAIStrategy, name: str) -> Any:
    if strategy.engine is not None:
        return strategy.engine.boosted
    names = (
        native_files.numbered(native_files.OPTIMIZER, index)
        for index in range(len(strategy.optimizers))
    )
    optimizers = dict(zip(names, strategy.optimizers, strict=True))
    return library.load("colossalai.interface").OptimizerWrapper(optimizers[name])


def _together(collectives: Collectives, work: Callable[[], Any], *, is_alone: bool = False) -> None:
    """All ranks. Do it, or let rank 0 do it; what fails on one rank is an error on all."""
    failure: Exception | None = None
    try:
        if collectives.rank == 0 or not is_alone:
            work()
    except Exception as error:  # sent to the others first
        failure = error
    texts = collectives.gather_objects(
        None if failure is None else f"{type(failure).__name__}: {failure}"
    )
    found = collectives.broadcast_object(
        texts and [(rank, text) for rank, text in enumerate(texts) if text]
    )
    if isinstance(failure, CheckpointError):
        raise failure
    if found:
        rank, text = found[0]
        raise CheckpointError(
            f"Rank {rank} can't write a checkpoint in Colossal-AI's layout: {text}"
        ) from failure


def _put_in_place(beside: Path, target: Path) -> None:
    """Flush what was written, and let it replace what is there."""
    for path in (beside, *beside.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    before = target.with_name(f"{beside.name}.before")
    if target.exists():
        target.rename(before)
    beside.rename(target)
    shutil.rmtree(before, ignore_errors=True)
