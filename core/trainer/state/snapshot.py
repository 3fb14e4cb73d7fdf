"""The snapshot from which a run can go on exactly, written and read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from core import __version__
from core.contract import CheckpointCorruptedError, CheckpointError
from core.session import UserData
from core.trainer.hooks.events import overrides
from core.trainer.logging import running_metrics
from core.trainer.module import hyperparameters
from core.trainer.state import foreign_state
from core.trainer.state.finished_fit import Position, share_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import PathLike
    from core.trainer.trainer import Trainer

FORMAT_VERSION = 1


def save(trainer: Trainer, path: PathLike, *, weights_only: bool = False, position: Position | None = None) -> None:
    """All ranks. Write the state between two optimizer steps, or only what evaluation needs of it.

    Args:
        trainer: whose module, optimizers and schedulers are set up.
        path: a local path or a URL.
        weights_only: leave out what only training needs.
        position: of a stage that is over; None asks the one that runs.
    """
    strategy = trainer.strategy
    strategy.synchronize_model()
    module_section: dict[str, Any] = {}
    if overrides(trainer.module, "on_save_checkpoint"):
        trainer.module.on_save_checkpoint(module_section)
    state = {
        "format": {"version": FORMAT_VERSION, "core": __version__, "world_size": strategy.world_size},
        "model": trainer.module,
        "module_section": UserData(module_section),
        **hyperparameters.to_checkpoint(trainer.module),
    }
    if not weights_only:
        state |= _training_state(trainer, position or Position.of(trainer))
    trainer.session.save_checkpoint(path, state)


def _training_state(trainer: Trainer, position: Position) -> dict[str, Any]:
    return {
        **_parts(trainer),
        "callbacks": {callback.state_key: _callback_state(trainer, callback) for callback in trainer.callbacks},
        **position.loaders,
        **_datamodule_state(trainer),
        "ranks": trainer.strategy.gather_objects(position.rank) or [],
    }


def load(trainer: Trainer, path: PathLike) -> None:
    """All ranks. Restore in place; the random state is kept until the first batch is asked for.

    Raises:
        CheckpointError: it can't be read, or doesn't fit.
    """
    strategy = trainer.strategy
    prepared: list[bool] = []

    def check(content: dict[str, Any]) -> None:
        _check(trainer, content, path)
        if trainer.trains and not prepared:
            prepared.append(True)
            _prepare_callbacks(trainer, content)

    with _storage_of(trainer, path):
        saved = trainer.session.read_checkpoint(
            path,
            _parts(trainer) if trainer.trains else {"model": trainer.module},
            check=check,
        )
    if overrides(trainer.module, "on_load_checkpoint"):
        trainer.module.on_load_checkpoint(saved["module_section"])
    # The weights may be of another module; everything else has to be there.
    strict = getattr(trainer.module, "strict_loading", True)
    rest = trainer.session.restore_state(saved, {"model": trainer.module}, strict=strict)
    if trainer.trains:
        trainer.session.restore_state(rest, {name: part for name, part in _parts(trainer).items() if name != "model"})
    for callback in trainer.callbacks:
        if (state := saved.get("callbacks", {}).get(callback.state_key)) is not None:
            _restore_callback(trainer, callback, state)
    if not trainer.trains:
        return
    _restore_datamodule(trainer, saved.get("datamodule", {}).get("state"))
    for optimizer in strategy.optimizers:
        # It has stepped, if not in this process: torch's schedulers look here, and would warn.
        optimizer._opt_called = trainer.progress.global_step > 0  # type: ignore[attr-defined]
    if "loaders" in saved:  # what another program saved has weights and counters only
        _restore_position(trainer, saved)
    share, num_shares = share_of(strategy)
    if ranks := saved.get("ranks", []):
        metrics = {state["share"]: state["metrics"] for state in reversed(ranks)}  # of the first rank that has it
        parts = [metrics[number] for number in sorted(metrics)]
        running_metrics.restore(trainer, parts, share=share, num_shares=num_shares)
    trainer.restored_random_state = _random_state_of(ranks, strategy.global_rank, share)


@contextlib.contextmanager
def _storage_of(trainer: Trainer, path: PathLike) -> Iterator[None]:
    """A context in which the strategy reads by the storage of a callback that knows this path, if there is one."""
    strategy = trainer.strategy
    usual = strategy.checkpoint_io
    own = (callback.storage_of(path) for callback in trainer.callbacks if hasattr(callback, "storage_of"))
    strategy.checkpoint_io = next(filter(None, own), usual)
    try:
        yield
    finally:
        strategy.checkpoint_io = usual


def _prepare_callbacks(trainer: Trainer, saved: dict[str, Any]) -> None:
    for callback in trainer.callbacks:
        if overrides(callback, "before_restore"):
            state = saved.get("callbacks", {}).get(callback.state_key, {})
            callback.before_restore(trainer, trainer.module, state.get("section", {}))


def _random_state_of(ranks: list[dict[str, Any]], rank: int, share: int) -> dict[str, Any] | None:
    """The random state of this rank if it had the same share of the data, or else of the first one that had it."""
    candidates = [*ranks[rank : rank + 1], *ranks]
    return next((state["random"] for state in candidates if state["share"] == share), None)


def _check(trainer: Trainer, saved: dict[str, Any], path: PathLike) -> None:
    """Check what was saved, or its description, before any of it is restored."""
    _check_format(saved, path)
    if not trainer.trains:
        return
    if "progress" not in saved:
        raise CheckpointError(
            f"{path} holds weights only, so training can't go on from it. Load it for evaluation, or pass a checkpoint "
            "that was saved with save_weights_only=False."
        )
    _check_optimizers(saved, len(trainer.strategy.optimizers), path)


def _check_optimizers(saved: dict[str, Any], num_made: int, path: PathLike) -> None:
    num_saved = len(saved.get("optimizers", []))
    if num_saved != num_made:
        raise CheckpointError(
            f"{path} holds the state of {num_saved} optimizers, and configure_optimizers made {num_made}. What was "
            "saved after fit had returned may hold none: let ModelCheckpoint save, or save in a hook such as "
            "on_train_end."
        )


def _restore_datamodule(trainer: Trainer, state: dict[str, Any] | None) -> None:
    datamodule = trainer.datamodule
    if state and datamodule is not None and overrides(datamodule, "load_state_dict"):
        datamodule.load_state_dict(state)
        trainer.loaders.ask_again()


def _restore_position(trainer: Trainer, saved: dict[str, Any]) -> None:
    progress = trainer.progress
    batch = trainer.loaders.load_state_dict(saved["loaders"], progress.batch)
    is_limited = trainer.options.limit_train_batches is not None
    if (feed := trainer.loaders.windowed_feed) is not None:
        is_recut = not feed.is_between_windows  # else what is left is as many windows on any number of ranks
    else:
        is_recut = saved["format"]["world_size"] != trainer.strategy.world_size
    progress.go_on_at(batch, is_recut=is_recut and batch > 0 and not is_limited)


def _parts(trainer: Trainer) -> dict[str, Any]:
    strategy = trainer.strategy
    return {
        "model": trainer.module,
        "optimizers": list(strategy.optimizers),
        "lr_schedulers": list(strategy.lr_schedulers),
        "precision": strategy.precision_plugin,
        "progress": trainer.progress,
    }


def _datamodule_state(trainer: Trainer) -> dict[str, Any]:
    datamodule = trainer.datamodule
    if datamodule is None:
        return {}
    state = datamodule.state_dict()
    section = {**({"state": UserData(state)} if state else {}), **hyperparameters.to_checkpoint(datamodule)}
    return {"datamodule": section} if section else {}


def _callback_state(trainer: Trainer, callback: Any) -> dict[str, Any]:
    section: dict[str, Any] = {}
    if overrides(callback, "on_save_checkpoint"):
        callback.on_save_checkpoint(trainer, trainer.module, section)
    return {"state": UserData(callback.state_dict()), "section": UserData(section)}


def _restore_callback(trainer: Trainer, callback: Any, state: dict[str, Any]) -> None:
    if overrides(callback, "on_load_checkpoint"):
        callback.on_load_checkpoint(trainer, trainer.module, state["section"])
    if trainer.trains:
        callback.load_state_dict(state["state"])


def _check_format(saved: dict[str, Any], path: PathLike) -> None:
    form = saved.get("format")
    if not isinstance(form, dict) or "version" not in form:
        raise foreign_state.refusal(saved, path)
    if form["version"] > FORMAT_VERSION:
        raise CheckpointCorruptedError(
            f"{path} has format {form['version']}, written by core {form['core']!r}; this is core {__version__}, which "
            f"reads up to {FORMAT_VERSION}. Install that release, or a later one."
        )
