"""The listeners of each hook: collected once, when a stage begins, so that a step calls no hook
that is empty.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
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
        # A callback gets trainer and module first.
        given = (self._trainer, self._module)
        known: list[tuple[Any, tuple[Any, ...], bool]] = [
            (each, given, bool(each.runs_last)) for each in self._callbacks
        ]
        known.append((self._module, (), False))
        if self._datamodule is not None and name in _DATAMODULE_HOOKS:
            known.insert(0, (self._datamodule, (), False))
        found = []
        for listener, arguments, runs_last in sorted(known, key=itemgetter(2)):
            if last in (None, runs_last) and overrides(listener, name):
                call = getattr(listener, name)
                if arguments:
                    call = partial(call, *arguments)
                if hasattr(EventHooks, name):  # without arguments at its end that it leaves out
                    names = hook_arguments(name)[2:]
                    call = cut(call, len(names), count_accepted(call, names, least=0))
                if self._profiler is not None:
                    call = self._profiler.wrap(f"{type(listener).__qualname__}.{name}", call)
                found.append(call)
        return found

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
