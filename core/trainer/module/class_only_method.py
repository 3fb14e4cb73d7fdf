"""Class methods that make a new object."""

from __future__ import annotations

from typing import Any

from core.contract import ConfigurationError


class ClassOnlyMethod(classmethod):  # type: ignore[type-arg]  # generic for type checkers only
    """A class method that makes a new object, and so is a mistake when it is called on one."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method; on an instance a function that explains."""
        if instance is None:
            return super().__get__(instance, owner)
        name, kind = self.__func__.__name__, type(instance).__name__

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise ConfigurationError(
                f"{name} makes a new module and leaves this one alone. Call it on the class: "
                f"module = {kind}.{name}(...)."
            )

        return refuse
