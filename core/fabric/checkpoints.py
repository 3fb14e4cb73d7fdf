"""Checkpoints of what was set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.fabric.setup import Setup, check_state
from core.fabric.state import copy_values, filter_modules, holds_objects, unwrap
from core.watch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from core.contract.checkpoint_io import PathLike


class Checkpoints(Setup):
    """The part of Fabric that saves and loads. Not meant to be used by itself."""

    def save(
        self,
        path: PathLike,
        state: Mapping[str, Any],
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """All ranks. Write a checkpoint, which loads under any strategy and number of processes.

        Args:
            path: a local path or a URL.
            state: values are modules and optimizers that were set up here, objects with
                `state_dict()` such as schedulers and loaders, or plain values.
            filter: by name of a module in `state`, a function that is called with each key and
                value of its state dict, and returns True to save it. Such a checkpoint is loaded
                with `strict=False`.

        Raises:
            CheckpointError: it can't be written; what was at `path` is untouched.
            ConfigurationError: `state` isn't a dict, or `filter` names something else than a module
                in it.
        """
        check_state("save", path, state)
        if filter:
            state = {**state, **filter_modules(self.strategy, state, filter)}
        from core.session import save_checkpoint  # who neither saves nor loads waits for none of it

        self._set_up()
        with phase("checkpoint"):
            self.strategy.synchronize_model()
            save_checkpoint(self.session, path, unwrap(state))

    def load(
        self,
        path: PathLike,
        state: dict[str, Any] | None = None,
        *,
        strict: bool = True,
        weights_only: bool | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """All ranks. Read a checkpoint; restore objects in `state` in place, and replace its plain
        values.

        Args:
            path: a local path or a URL.
            state: as given to `save`.
            strict: all of its names, all keys of its modules and all parameters of its optimizers
                must be there.
            weights_only: None and True are what always holds: nothing in a checkpoint is executed.
                False is refused.
            renamed: names of tensors and modules by those that they were saved with.

        Returns:
            What was saved and isn't in `state`.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is damaged or foreign.
            CheckpointError: it doesn't fit `state`.
            ConfigurationError: `state` isn't a dict.
        """
        if state is None:
            state = {}
        check_state("load", path, state)
        if weights_only is False:
            raise ConfigurationError(
                "load(weights_only=False): a checkpoint holds tensors and plain values, and "
                "nothing in it is executed. Leave the argument out; read a pickle that you trust "
                "with torch.load."
            )
        from core.session import load_checkpoint

        self._set_up()
        # `unwrap` copies the dicts in which it replaces a wrapper, and loading fills the copies.
        targets = unwrap(state)
        with phase("checkpoint"):
            rest = load_checkpoint(self.session, path, targets, strict=strict, renamed=renamed)
        # Objects were restored in place. What is left are plain values: those that `state` names go
        # into it, the others are returned.
        copied = {name: value for name, value in targets.items() if isinstance(value, dict)}
        for name in state:
            if name in rest and not holds_objects(state[name]):
                copied[name] = rest.pop(name)
        copy_values(state, copied)
        return rest

    def load_raw(self, path: PathLike, obj: nn.Module | Optimizer, *, strict: bool = True) -> None:
        """All ranks. Load a file that `torch.save(obj.state_dict(), path)` wrote, without Fabric.

        Args:
            path: a local path or a URL.
            obj: a module or an optimizer that was set up here.
            strict: all keys of a module must be there.

        Raises:
            CheckpointNotFoundError: nothing is at `path`.
            CheckpointCorruptedError: it is no file of torch, or holds more than tensors and plain
                values.
            CheckpointError: it doesn't fit `obj`.
        """
        self._set_up()
        from core.fabric.raw_state import load  # whoever saves and loads by Fabric needs none of it

        load(self.strategy, path, unwrap(obj), strict=strict)
