"""Modules whose calls are answered by something else, wherever they are called from: by a name, out
of a list, or twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    Answer = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class AnsweredCalls:
    """Modules have a class of the same name while calls of them are answered: so they keep their
    places, their attributes and what `isinstance` says, and their hooks aren't called.

    Args:
        answer: is given the module and its arguments.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._own: dict[nn.Module, type] = {}
        self._classes: dict[type, type] = {}

    @contextmanager
    def of(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """A context in which calls of modules are answered."""
        self._own = {one: type(one) for one in modules}
        for one, own in self._own.items():
            one.__class__ = self._answering(own)
        try:
            yield
        finally:
            for one, own in self._own.items():
                one.__class__ = own

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the module itself."""
        module.__class__ = self._own[module]
        try:
            return module(*args, **kwargs)
        finally:
            module.__class__ = self._answering(self._own[module])

    def _answering(self, own: type) -> type:
        if own not in self._classes:
            answer = self._answer

            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                return answer(module, args, kwargs)

            names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
            self._classes[own] = type(own.__name__, (own,), {**names, "__call__": call})
        return self._classes[own]
