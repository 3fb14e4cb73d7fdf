"""Answers to a module that is used the wrong way: without a trainer, or where its class was
meant.
"""

from __future__ import annotations

from typing import Any, NoReturn

from core.contract import ConfigurationError, ModuleError, NotYetChosenError


class NoTrainer:
    """False, and an error about every attribute; not in its place, so that those who list a
    module's attributes can.
    """

    def __init__(self, module_name: str) -> None:
        self.__dict__["_module_name"] = module_name

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        module = self.__dict__.get("_module_name", "The module")  # a copy has none while it is made
        raise NotYetChosenError(
            f"{module} is not attached to a Trainer. Call this from its steps and hooks, which a "
            "Trainer runs."
        )


class ClassOnlyMethod(classmethod):  # type: ignore[type-arg]  # generic for type checkers only
    """A class method that makes a new object, and so is a mistake when it is called on one."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The method; on an instance a function that explains."""
        if instance is None:
            return super().__get__(instance, owner)
        name, kind = self.__func__.__name__, type(instance).__name__

        def refuse(*args: object, **kwargs: object) -> object:
            raise ConfigurationError(
                f"{name} makes a new module and leaves this one alone. Call it on the class: "
                f"module = {kind}.{name}(...)."
            )

        return refuse


def unnamed(name: object) -> ModuleError:
    """The error of a `self.log` without a name."""
    advice = "self.log('loss', loss) records one"
    if hasattr(name, "items"):
        advice = "self.log_dict({...}) records several values"
    return ModuleError(
        f"self.log got a {type(name).__name__} as its name; expected a str, and then the value: "
        f"{advice}."
    )
