"""The trainer of a module that none has run yet."""

from __future__ import annotations

from typing import NoReturn

from core.contract import NotYetChosenError


class NoTrainer:
    """False, and an error about every attribute; not in its place, so that those who list a module's attributes can."""

    def __init__(self, module_name: str) -> None:
        self.__dict__["_module_name"] = module_name

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        module = self.__dict__.get("_module_name", "The module")  # a copy has none while it is made
        raise NotYetChosenError(
            f"{module} is not attached to a Trainer. Call this from its steps and hooks, which a Trainer runs."
        )
