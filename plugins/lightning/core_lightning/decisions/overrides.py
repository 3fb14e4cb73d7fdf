"""Methods of Lightning's classes that nothing calls here: a subclass that overrides one is refused
when it is made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from core import Callback, ConfigurationError, EventHooks
from core.contract import empty_hook
from core_lightning.decisions.differences import NAMES_PAGE, note


class RefusesOverrides:
    """A base of classes whose subclasses may override less than under Lightning.

    The line that defines such a subclass warns, since a package may define more than a program
    uses.
    """

    uncalled: ClassVar[Mapping[str, str]] = {}
    """Names of methods that Lightning calls, and core doesn't, each with the public way, as a
    sentence.
    """
    _refused: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "uncalled" in vars(cls):  # of this package
            return
        if found := sorted(cls.uncalled.keys() & vars(cls).keys()):
            ways = " ".join(dict.fromkeys(cls.uncalled[name] for name in found))
            cls._refused = (
                f"{cls.__name__} overrides {', '.join(found)}, which nothing calls here. {ways}"
            )
            note(cls._refused, page=NAMES_PAGE, stacklevel=2)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse a class with such a method."""
        if cls._refused:
            raise ConfigurationError(cls._refused)
        return super().__new__(cls)


def take_pl_module(cls: type) -> None:
    """Accept `pl_module=`, as Lightning names `module`, in the hooks of a class of callbacks."""
    for base in cls.__mro__:
        owner = Callback if base is EventHooks else base  # whose own have names that others go by
        for name, hook in list(vars(base).items()):
            code = getattr(hook, "__code__", None)
            if (
                code
                and "module" in code.co_varnames[: code.co_argcount]
                and (owner is base or name not in vars(owner))
            ):
                renamed = _renamed(hook)
                setattr(owner, name, renamed if owner is base else empty_hook(renamed))


def _renamed(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def renamed(*arguments: Any, **options: Any) -> Any:
        if "pl_module" in options:
            options["module"] = options.pop("pl_module")
        return hook(*arguments, **options)

    signature = inspect.signature(hook)
    names = {"module": "pl_module"}
    parameters = [
        each.replace(name=names.get(name, name)) for name, each in signature.parameters.items()
    ]
    renamed.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return renamed
