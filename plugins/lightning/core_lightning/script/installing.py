"""Installs Lightning's names in this process, as modules that are made from a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from core import ConfigurationError
from core_lightning.decisions.differences import NAMES_PAGE
from core_lightning.names import modules as names


def install(*, trusted: bool = False) -> None:
    """Make `lightning`, `pytorch_lightning` and `lightning_fabric` mean core in this process, from
    here on.

    Call it before any import of them, at the top of a script. A second call adds trust, or nothing.
    An installed Lightning stays as it is, for other processes.

    Args:
        trusted: you know who has written the checkpoints that this program reads, itself perhaps:
            objects are kept in them, as under Lightning, and unpickled when they are read, which
            executes what they say. The program's own `torch.load(path, weights_only=False)` finds
            them at Lightning's places.

    Raises:
        ConfigurationError: Lightning itself has been imported already: a process has the one or the
            other.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        imported = [name for name in names.ROOTS if name in sys.modules]
        if imported:
            raise ConfigurationError(
                f"Lightning's own {imported[0]!r} has been imported in this process already. "
                "Choose one of the two: call core_lightning.install() before the first import of "
                "it, or leave the call out to use Lightning."
            )
        # rich draws from Python's generator when it is imported: as under Lightning, before a
        # program sets its seeds.
        import_module("rich.style")
        sys.meta_path.insert(0, _Finder())
    if trusted:
        # the others wait for no torch
        from core_lightning.checkpoints.trusted_reads import trust_checkpoints

        trust_checkpoints()


def install_trusted() -> None:
    """Call `install(trusted=True)`: the prelude of `core run --lightning-trusted`."""
    install(trusted=True)


def _explain(script: Path) -> tuple[str, bool]:
    from core_lightning.script.explaining import explain  # no script that is run waits for it

    return explain(script)


for _prelude in (install, install_trusted):
    _prelude.explain = _explain  # type: ignore[attr-defined]  # of `core run --lightning --explain`
    _prelude.owns_processes = True  # type: ignore[attr-defined]  # programs for Lightning start their ranks themselves


class _Finder(MetaPathFinder):
    """Finds the modules of the table, and refuses others below these roots."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not names.is_lightnings(fullname):
            return None
        name = names.long_name(fullname)
        if name not in names.MODULES:
            raise ModuleNotFoundError(
                f"core-lightning has no module {fullname!r}; {NAMES_PAGE} says which of "
                "Lightning's names it has.",
                name=fullname,
            )
        return ModuleSpec(fullname, _Loader(), origin=names.__file__, is_package=True)

    def find_distributions(self, context: Any) -> Iterator[metadata.Distribution]:
        """The metadata that `importlib.metadata.version("lightning")` asks for."""
        if (context.name or "").replace("-", "_") in names.ROOTS:
            yield _Distribution(context.name)


class _Distribution(metadata.Distribution):
    """The metadata of Lightning's release, in a process where core stands for it."""

    def __init__(self, name: str) -> None:
        self._own = f"Metadata-Version: 2.1\nName: {name}\nVersion: {names.VERSION}\n"

    def read_text(self, filename: str) -> str | None:
        return self._own if filename == "METADATA" else None

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(names.__file__).parent / path


class _Loader(Loader):
    """Makes the modules: each looks a name up in the table when it is first asked for."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        name = names.long_name(spec.name)
        # One object under both names, so that a class is the same wherever it is imported from.
        return import_module(name) if name != spec.name else _NamedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = names.__file__


class _NamedModule(ModuleType):
    """A module of Lightning's, whose attributes are those of core or of this package."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        table = names.MODULES[names.long_name(self.__name__)]
        if name == "__all__":
            return sorted(table)
        if name in table:
            value = _look_up(table[name])
        elif names.long_name(full) in names.MODULES:
            value = import_module(full)
        else:
            raise AttributeError(
                f"core-lightning has no {full!r}; {NAMES_PAGE} says which of Lightning's names "
                "it has"
            )
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


def _look_up(target: str) -> Any:
    module, _, attribute = target.partition(":")
    value = getattr(import_module(module), attribute)
    if any(base.__name__ == "Callback" for base in getattr(value, "__mro__", ())):
        import_module("core_lightning.decisions.overrides").take_pl_module(value)
    return value
