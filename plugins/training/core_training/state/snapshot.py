"""The snapshot from which a run can go on exactly, written and read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from core.checkpoint import check_random_state
from core.contract import CheckpointCorruptedError, CheckpointError, CoreError
from core.registry import CORE_VERSION
from core.session import (
    UserData,
    check_schedulers,
    describe_changes,
    describe_scheduler,
    read_checkpoint,
    restore_state,
    save_checkpoint,
)
from core_training.hooks.callback import StateKeeper
from core_training.hooks.events import override_of, overrides
from core_training.hparams import foreign_state, hyperparameters
from core_training.logging import running_metrics
from core_training.settings.resume import Resume
from core_training.settings.warn_at import warn_caller
from core_training.state.finished_fit import position_of, share_of
from core_training.state.finished_run import check_limits
from core_training.state.program_settings import compare_settings
from core_training.state.trainable import check_trained, describe_frozen, trained_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import CheckpointIO, PathLike
    from core_training.run import FinishedFit, Position, Run


FORMAT_VERSION = 1
_MAX_REASON = 300


def save(
    run: Run, path: PathLike, *, weights_only: bool = False, finished: FinishedFit | None = None
) -> None:
    """All ranks. Write the state between two optimizer steps, or only what evaluation needs of it.

    Args:
        run: whose module, optimizers and schedulers are set up.
        path: a local path or a URL.
        weights_only: leave out what only training needs.
        finished: the fit that is over; None asks the stage that runs.
    """
    strategy = run.strategy
    strategy.synchronize_model()
    module_section: dict[str, object] = {}
    hook = override_of(run.module, "on_save_checkpoint")
    if hook is not None:
        hook(module_section)
    form: dict[str, object] = {
        "version": FORMAT_VERSION,
        "core": CORE_VERSION,
        "world_size": strategy.world_size,
    }
    model: object = run.module
    if run.options.save_only != "all":
        form["save_only"] = run.options.save_only
        form["frozen"] = describe_frozen(run)
        model = trained_state(run)
    state = {
        "format": form,
        "module_section": UserData(module_section),
        **hyperparameters.to_checkpoint(run.module),
    }
    kept = position = None
    if finished is not None:
        kept = finished.rank_state
        position = finished.position
    if not weights_only:
        state |= _training_state(run, position or position_of(run))
    save_checkpoint(run.session, path, {**state, "model": model}, kept=kept)


def save_by(run: Run, storage: CheckpointIO, path: PathLike) -> None:
    """All ranks. Write the state between two optimizer steps by another storage than the
    strategy's.
    """
    with _by(run, storage):
        save(run, path)


def _training_state(run: Run, position: Position) -> dict[str, object]:
    callbacks = {}
    for callback in run.callbacks:
        section: dict[str, Any] = {}
        if overrides(callback, "on_save_checkpoint"):
            callback.on_save_checkpoint(run.trainer, run.module, section)
        callbacks[callback.state_key] = {
            "state": UserData(callback.state_dict() or {}),
            "section": UserData(section),
        }
    datamodule = {}
    if run.datamodule is not None:
        datamodule = hyperparameters.to_checkpoint(run.datamodule)
        state = run.datamodule.state_dict()
        if state:
            datamodule["state"] = UserData(state)
    if datamodule:
        datamodule = {"datamodule": datamodule}
    return {
        **_parts(run),
        "max_steps": run.options.max_steps,
        "settings": run.settings,
        "schedulers": [
            {
                **describe_scheduler(item.scheduler),
                "is_waiting": item.is_waiting,
                "renewed_by": sorted(item.renewed_by),
            }
            for item in run.strategy.lr_schedulers
        ],
        "callbacks": callbacks,
        **position.loaders,
        **datamodule,
        "ranks": run.strategy.gather_objects(position.rank) or [],
    }


def load(run: Run, path: PathLike) -> None:
    """All ranks. Restore in place; the random state is kept until the first batch is asked for.

    Raises:
        CheckpointError: it can't be read, or doesn't fit.
    """
    strategy = run.strategy
    resume = run.resume or Resume()
    parts: dict[str, object] = {"model": run.module}
    if run.trains:
        parts = resume.choose(_parts(run))
    prepared: list[bool] = []

    def check(content: dict[str, Any]) -> None:
        with restoring("content", path):
            content = resume.choose(content)
            _check(run, content, path)
        if run.trains and not prepared:
            prepared.append(True)
            for callback in run.callbacks:
                if overrides(callback, "before_restore"):
                    state = content.get("callbacks", {}).get(callback.state_key, {})
                    callback.before_restore(run.trainer, run.module, state.get("section", {}))
            if resume.takes("schedulers"):
                with restoring("schedulers", path):
                    schedulers = [item.scheduler for item in strategy.lr_schedulers]
                    check_schedulers(
                        schedulers, content.get("lr_schedulers", []), content.get("schedulers", [])
                    )

    storage = None
    for callback in run.callbacks:
        if isinstance(callback, StateKeeper):
            storage = storage or callback.storage_of(path)
    with _by(run, storage):
        saved = resume.choose(read_checkpoint(run.session, path, parts, check=check))
    hook = override_of(run.module, "on_load_checkpoint")
    if hook is not None and "module_section" in saved:
        hook(saved["module_section"])
    rest = saved
    for name, part in parts.items():
        with restoring(name, path):
            strict = resume.strict
            if name == "model":
                strict = _restores_all_weights(run, resume, rest, path)
            rest = restore_state(
                run.session, rest, {name: part}, strict=strict, renamed=resume.renamed
            )
    if run.trains:
        with restoring("schedulers", path):
            for item, state in zip(
                strategy.lr_schedulers, saved.get("schedulers", []), strict=False
            ):
                item.is_waiting = state["is_waiting"]
                item.renewed_by = set(state["renewed_by"])
        with restoring("callbacks", path):
            _warn_of_lacking_callbacks(run, saved)
    for callback in run.callbacks:
        state = saved.get("callbacks", {}).get(callback.state_key)
        if state is not None:
            with restoring(f"callbacks[{callback.state_key!r}]", path, state["state"]):
                if overrides(callback, "on_load_checkpoint"):
                    callback.on_load_checkpoint(run.trainer, run.module, state["section"])
                if run.trains:
                    callback.load_state_dict(state["state"])
    if not run.trains:
        return
    state = saved.get("datamodule", {}).get("state")
    if state and run.datamodule is not None and overrides(run.datamodule, "load_state_dict"):
        with restoring("datamodule", path, state):
            run.datamodule.load_state_dict(state)
            run.loaders.ask_again()
    for optimizer in strategy.optimizers:
        # It has stepped, if not in this process: torch's schedulers look here, and would warn.
        optimizer._opt_called = run.progress.global_step > 0  # type: ignore[attr-defined]
    if "loaders" in saved:  # what another program saved has weights and counters only
        with restoring("loaders", path):
            _restore_position(run, saved)
    elif not resume.takes("data"):
        run.progress.restart_epoch()
    with restoring("ranks", path):
        _restore_ranks(run, saved.get("ranks", []))
    with restoring("settings", path):
        compare_settings(run, saved.get("settings", {}), path)


def _restores_all_weights(run: Run, resume: Resume, saved: dict[str, Any], path: PathLike) -> bool:
    """True if the weights must be those of the module. They may be of another one; everything else
    has to be there.
    """
    if not resume.strict:
        run.fabric.print(describe_changes(run.session, run.module, saved["model"], resume.renamed))
        return False
    if not getattr(run.module, "strict_loading", True):
        return False
    if "save_only" in saved["format"]:
        check_trained(run, saved["model"], saved["format"], path)
        return False
    return True


def _restore_ranks(run: Run, ranks: list[dict[str, Any]]) -> None:
    strategy = run.strategy
    share, num_shards = share_of(strategy)
    run.restored_random_state = None
    # This rank's if it had the same shard of the data, or else that of the first one that had it.
    for state in (*ranks[strategy.global_rank :][:1], *ranks):
        if state["share"] == share:
            check_random_state(state["random"])  # put back when the first batch is asked for
            run.restored_random_state = state["random"]
            break
    if ranks:
        # of the first rank that has it
        metrics = {state["share"]: state["metrics"] for state in reversed(ranks)}
        parts = [metrics[number] for number in sorted(metrics)]
        running_metrics.restore(
            run.logged, run.module, strategy.root_device, parts, share=share, num_shards=num_shards
        )


@contextlib.contextmanager
def _by(run: Run, storage: CheckpointIO | None) -> Iterator[None]:
    """A context in which the strategy writes and reads by this storage, if it isn't None."""
    strategy = run.strategy
    usual = strategy.checkpoint_io
    strategy.checkpoint_io = storage or usual
    try:
        yield
    finally:
        strategy.checkpoint_io = usual


def _warn_of_lacking_callbacks(run: Run, saved: dict[str, Any]) -> None:
    """Rank 0. Name the saved states that go to no callback. Of one that only saves, training
    doesn't depend.
    """
    own = {callback.state_key for callback in run.callbacks}
    lacking = []
    for key, state in saved.get("callbacks", {}).items():
        only_saves = key.startswith("ModelCheckpoint")
        if key not in own and not only_saves and (state["state"] or state["section"]):
            lacking.append(key)
    if lacking and run.strategy.is_global_zero:
        warn_caller(
            f"The checkpoint has the state of {', '.join(lacking)}, and no callback of this "
            "Trainer takes it. If training is to go on as before, pass the callbacks that it was "
            "saved with.",
        )


def _check(run: Run, saved: dict[str, Any], path: PathLike) -> None:
    """Check what was saved, or its description, before any of it is restored."""
    form = saved.get("format")
    if not isinstance(form, dict) or "version" not in form:
        raise foreign_state.refusal(saved, path)
    if form["version"] > FORMAT_VERSION:
        raise CheckpointCorruptedError(
            f"{path} has format {form['version']}, written by core {form.get('core')!r:.80}; this "
            f"is core {CORE_VERSION}, which reads up to {FORMAT_VERSION}. Install that release, or "
            "a later one."
        )
    if not run.trains:
        return
    takes = (run.resume or Resume()).takes
    if takes("step") and "progress" not in saved:
        raise CheckpointError(
            f"{path} holds weights only, so training can't go on from it. Load it for evaluation, "
            "or pass a checkpoint that was saved with save_weights_only=False."
        )
    if takes("step"):
        check_limits(run, saved, path)
    num_saved, num_made = len(saved.get("optimizers", [])), len(run.strategy.optimizers)
    if takes("optimizers") and num_saved != num_made:
        raise CheckpointError(
            f"{path} holds the state of {num_saved} optimizers, and configure_optimizers made "
            f"{num_made}. What was saved after fit had returned may hold none: let ModelCheckpoint "
            "save, or save in a hook such as on_train_end."
        )


def _restore_position(run: Run, saved: dict[str, Any]) -> None:
    progress = run.progress
    num_saved = saved["format"]["world_size"]
    num_ranks = run.strategy.world_size
    shares_itself = run.loaders.reads_again and not run.options.use_distributed_sampler
    if progress.batch and shares_itself and num_saved != num_ranks:
        raise CheckpointError(
            f"The checkpoint was saved within an epoch by {num_saved} ranks, of which each read a "
            f"share of its own (use_distributed_sampler=False), and {num_ranks} are to go on: what "
            f"they have left can't be told. Go on with {num_saved}, pass a checkpoint of an "
            "epoch's end, or use a map-style data set."
        )
    batch = run.loaders.load_state_dict(saved["loaders"], progress.batch)
    is_limited = run.options.limit_train_batches is not None
    resumable = run.loaders.windowed_loader
    is_recut = num_saved != num_ranks or run.loaders.was_recut
    if resumable is not None:  # else what is left is as many windows on any number of ranks
        is_recut = not resumable.is_between_windows
    progress.go_on_at(batch, is_recut=is_recut and batch > 0 and not is_limited)


def _parts(run: Run) -> dict[str, object]:
    strategy = run.strategy
    return {
        "model": run.module,
        "optimizers": list(strategy.optimizers),
        "lr_schedulers": list(strategy.lr_schedulers),
        "precision": strategy.precision_plugin,
        "progress": run.progress,
    }


@contextlib.contextmanager
def restoring(name: str, path: PathLike, saved: object = "something") -> Iterator[None]:
    """A context in which one section is restored: what raises there does so over its content, shown
    if it is given.

    Raises:
        CheckpointCorruptedError: with the section's name.
    """
    try:
        yield
    except (CoreError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointCorruptedError(
            f"{path} is damaged, or not a checkpoint of this run: its {name} is {saved!s:.80} that "
            f"can't be restored. {reason:.{_MAX_REASON}} Load another checkpoint."
        ) from error
