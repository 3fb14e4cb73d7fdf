"""Methods of Lightning's classes that nothing calls here: a subclass that overrides one is refused when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from core import ConfigurationError
from core_lightning.differences import note


class RefusesOverrides:
    """A base of classes whose subclasses may override less than under Lightning.

    The line that defines such a subclass warns, since a package may define more than a program uses.
    """

    uncalled: ClassVar[Mapping[str, str]] = {}
    """Names of methods that Lightning calls, and core doesn't, each with the public way, as a sentence."""
    _refused: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "uncalled" in vars(cls):  # of this package
            return
        if found := sorted(cls.uncalled.keys() & vars(cls).keys()):
            ways = " ".join(dict.fromkeys(cls.uncalled[name] for name in found))
            cls._refused = f"{cls.__name__} overrides {', '.join(found)}, which nothing calls here. {ways}"
            note(cls._refused, page="docs/lightning.md", stacklevel=2)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse a class with such a method."""
        if cls._refused:
            raise ConfigurationError(cls._refused)
        return super().__new__(cls)
