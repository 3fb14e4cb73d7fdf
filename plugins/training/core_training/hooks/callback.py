"""The base of all callbacks, and the protocol of those that keep states of a run by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from core.contract import empty_hook
from core_training.hooks.event_hooks import EventHooks

if TYPE_CHECKING:
    from torch import nn

    from core.contract import CheckpointIO, PathLike


class Callback(EventHooks[Any]):
    """Actions around training, apart from the research code. Meant to be subclassed.

    Override the hooks that you need (`core.EventHooks` lists them in the order in which
    they happen); one that isn't overridden is never called and costs nothing. All ranks call every
    hook. A hook may also be an attribute of the instance, set in `__init__`, for a callback that
    needs it with some arguments only.
    """

    runs_last: bool = False
    """True to be called after all others and the module, as a callback that judges or saves the
    outcome has to be.
    """

    found_as: ClassVar[str] = ""
    """The attribute of a Trainer that finds callbacks of this kind, such as `checkpoint_callback`;
    empty for most.
    """

    leaves_traces: ClassVar[bool] = False
    """True to be left out of `fast_dev_run`, as what writes, logs or stops has to be."""

    has_served: bool = False
    """True once a `fit` with it is over."""

    @property
    def state_key(self) -> str:
        """The name under which a checkpoint keeps the state; must differ between two callbacks of
        one trainer.

        The class's own name, wherever it stands: a class that was pickled by value has no other in
        the process that unpickles it.
        """
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """The state that must survive a restart: plain types, tensors and arrays. The same on all
        ranks.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def reset_for_fit(self) -> None:
        """Forget what belongs to one `fit`: counts, scores, the best. Meant to be overridden, and
        called by `__init__`.

        All ranks, when a later `fit` begins with another Trainer or module, before a state is
        restored.
        """

    def check_fit(self, trainer: Any, module: nn.Module) -> None:
        """Main process, when `fit` begins and no process has been made: refuse what can't work.

        Raises:
            ConfigurationError: with the ways out.
        """

    @empty_hook
    def before_fit(self, trainer: Any, call: Any) -> None:
        """Each process that calls `fit`, after all checks, unless training resumes: find what
        training begins with.

        Args:
            trainer: runs no stage yet.
            call: a `FitCall`, what `fit` was given.
        """

    @empty_hook
    def before_restore(self, trainer: Any, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """All ranks, when `fit` goes on, before anything is restored: make what the optimizers'
        state needs.

        Args:
            trainer: with optimizers as `configure_optimizers` has made them.
            module: set up.
            checkpoint: what `on_save_checkpoint` has put there; nothing if it was saved without
                this callback.
        """

    @property
    def keeps_state(self) -> bool:
        """True if checkpoints hold anything of this callback."""
        names = ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint")
        return any(getattr(type(self), name) is not getattr(Callback, name) for name in names)

    def _key_with(self, **options: object) -> str:
        """A state key that distinguishes callbacks of one class by their options."""
        return f"{type(self).__name__}{options}"

    # pluggy's specs of these take no defaults; an override that calls `super()` may leave out the
    # index.

    @empty_hook
    def on_validation_batch_start(
        self, trainer: Any, module: nn.Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The batch is on the device; `validation_step`, or that of the run, comes next."""

    @empty_hook
    def on_validation_batch_end(
        self,
        trainer: Any,
        module: nn.Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """`outputs`: what `validation_step`, or that of the run, returned."""

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end


class GoBack(Exception):
    """Raised by a callback on all ranks, between two optimizer steps: `fit` goes on from the state
    at its argument.
    """


@runtime_checkable
class StateKeeper(Protocol):
    """A callback that keeps states by itself, from which `fit(ckpt_path="last")` may continue.

    It writes them by `trainer.save_snapshot`.
    """

    def newest(self, trainer: Any, other: str | None) -> str | None:
        """All ranks. The path of the newest state that it has; None if `other` is newer.

        Args:
            trainer: which looks for something to continue from.
            other: the newest other checkpoint; None without one.
        """

    def storage_of(self, path: PathLike) -> CheckpointIO | None:
        """The CheckpointIO that reads this path; None if the strategy's does."""
