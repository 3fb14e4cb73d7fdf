"""The listeners of each hook: collected once, when a stage begins, so that a step calls no hook
that is empty.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from core.contract import is_empty_hook
from core_training.hooks.argument_counts import count_accepted, cut, hook_arguments
from core_training.hooks.event_hooks import EventHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from core_training.hooks.callback import Callback
    from core_training.profilers import Profiler

_DATAMODULE_HOOKS = ("setup", "teardown", "on_exception")


class Events:
    """The callbacks and the module of one run, seen as listeners.

    A callback's hook takes `(trainer, module, ...)`, the module's hook of the same name takes what
    follows. Callbacks come first, in their order, then the module, then the callbacks that want to
    see everything done. A data module is called at the stage's beginning and end, before all
    others.
    """

    def __init__(
        self,
        trainer: Any,
        module: nn.Module,
        callbacks: Sequence[Callback],
        datamodule: Any,
        profiler: Profiler | None = None,
    ) -> None:
        """Collect nothing yet.

        Args:
            trainer: what callbacks get first.
            module: what they get second, and itself a listener.
            callbacks: of the stage.
            datamodule: or None.
            profiler: measures each listener, or None.
        """
        self._trainer = trainer
        self._module = module
        self._callbacks = callbacks
        self._datamodule = datamodule
        self._profiler = profiler
        self._later: list[Callable[[], None]] | None = None

    def listeners(self, name: str, *, last: bool | None = None) -> list[Callable[..., Any]]:
        """The implementations of a hook, ready to be called with the event's own arguments.

        Args:
            name: of the hook.
            last: only the callbacks that `runs_last`, or only the others and the module; None is
                all.
        """
        found: list[tuple[object, Any]] = []
        if last is not True:
            if self._datamodule is not None and name in _DATAMODULE_HOOKS:
                found.append((self._datamodule, getattr(self._datamodule, name, None)))
            found += self._of_callbacks(name, runs_last=False)
            found.append((self._module, getattr(self._module, name, None)))
        if last is not False:
            found += self._of_callbacks(name, runs_last=True)
        return [
            self._profiled(listener, name, _shortened(call, name))
            for listener, call in found
            if overrides(listener, name)
        ]

    def _of_callbacks(self, name: str, *, runs_last: bool) -> list[tuple[object, Any]]:
        return [
            (each, partial(getattr(each, name), self._trainer, self._module))
            for each in self._callbacks
            if bool(each.runs_last) is runs_last and hasattr(each, name)
        ]

    def _profiled(
        self, listener: object, name: str, call: Callable[..., object]
    ) -> Callable[..., object]:
        if self._profiler is None:
            return call
        return self._profiler.wrap(f"{type(listener).__qualname__}.{name}", call)

    def hook(self, name: str) -> Callable[..., Any] | None:
        """One callable for all listeners, or None if there is none."""
        listeners = self.listeners(name)
        if not listeners:
            return None
        if len(listeners) == 1:
            return listeners[0]
        return partial(self._call, listeners)

    def emit(self, name: str, *args: object, last: bool | None = None) -> None:
        """Call all listeners now. For events outside of steps."""
        self._call(self.listeners(name, last=last), *args)

    def afterwards(self, action: Callable[[], None]) -> None:
        """Call `action` once the running hook of all listeners has been called: what it saves has
        the state of each.

        At once where no hook runs, or only this listener has it. If a listener fails, it isn't
        called.
        """
        if self._later is None:
            action()
        else:
            self._later.append(action)

    def _call(self, listeners: Sequence[Callable[..., Any]], *args: object) -> object:
        """Call all, also after one has answered -1."""
        later: list[Callable[[], None]] = []
        outer, self._later = self._later, later
        try:
            answers = [listener(*args) for listener in listeners]
        finally:
            self._later = outer
        for action in later:
            action()
        if any(answer == -1 for answer in answers):
            return -1
        return None


def _shortened(method: Callable[..., object], name: str) -> Callable[..., object]:
    """The hook without arguments at its end that it leaves out. Trainer and module are bound, or
    not given to it.
    """
    if not hasattr(EventHooks, name):
        return method
    names = hook_arguments(name)[2:]
    return cut(method, len(names), count_accepted(method, names, least=0))


def overrides(listener: object, name: str) -> bool:
    """True if a callback or module has a hook of its own, rather than the empty one of its base
    class.
    """
    return override_of(listener, name) is not None


def override_of(listener: object, name: str) -> Callable[..., Any] | None:
    """The hook that a callback or module has of its own; None if it has the empty one of its base
    class, or none.
    """
    method: Callable[..., Any] | None = getattr(listener, name, None)
    function = getattr(method, "__func__", method)
    if function is getattr(EventHooks, name, None) or is_empty_hook(function):
        return None
    return method
