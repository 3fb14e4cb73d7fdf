"""The tests of the package around a plugin: metadata, import, documentation."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core import EXPORTS_GROUP, HOOKS_GROUP, KINDS, PRELUDES_GROUP, __version__
from core.registry import CORE, CORE_DISTRIBUTIONS, IN_PROCESS, normalize_distribution
from core_testing.marks import launches
from core_testing.scripts import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.registry import Registry

_FAR_FUTURE = "9999"
_IMPORT_TIMEOUT_S = 120

# What comes of listing, in a process that has imported the registry only; and of importing a
# module, in one that has imported torch, for what that starts is none of the plugin's doing.
_LISTING = """
import json, os, sys
(request,) = json.loads(sys.argv[1])
report = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path[:] = request["path"]
from core.registry import REGISTRIES
REGISTRIES[request["kind"]].names()
json.dump([*sys.modules], report)
report.flush()
os._exit(0)
"""
_IMPORTING = """
import importlib, json, os, sys, threading, torch
(request,) = json.loads(sys.argv[1])
report = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path[:] = request["path"]
before = dict(os.environ), threading.active_count(), os.getcwd()
importlib.import_module(request["module"])
changed = sorted(name for name in {*before[0], *os.environ} if before[0].get(name) != os.environ.get(name)
                 and not name.startswith("TORCHINDUCTOR_"))  # torch's own compiler sets one when it is imported
threads = [thread.name for thread in threading.enumerate()][before[1]:]
distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
json.dump({"loaded": [*sys.modules], "variables": changed, "threads": threads, "group": distributed,
           "cuda": torch.cuda.is_initialized(), "moved": os.getcwd() != before[2]}, report)
report.flush()
os._exit(0)
"""  # noqa: E501


class PackagingTests:
    """The tests of how a plugin is packaged and documented. A part of every suite."""

    kind: ClassVar[str]
    alias: ClassVar[str]
    heavy_modules: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:

        @property
        def registry(self) -> Registry[Any]:
            """The registry of plugins of this kind."""

        make: Callable[..., Any]
        alone: Callable[[Callable[[], Any]], Any]

    def test_is_offered_and_made(self) -> None:
        """The alias is found, and what it names makes an instance of the kind's base class."""
        assert self.alias in self.registry
        assert self._instance.is_of_kind

    def test_documents_itself(self) -> None:
        """The class has a docstring of its own, which `core describe` shows."""
        instance = self._instance
        assert (instance.documentation or "").strip(), f"{instance.class_name} has no docstring"

    def test_types_and_documents_its_options(self) -> None:
        """Every option has an annotation and, but for what is passed on, an entry in the
        docstring's `Args:`.
        """
        target = self.registry.get(self.alias)
        untyped = [
            name
            for name, parameter, _ in _options(target)
            if parameter.annotation is parameter.empty
        ]
        silent = [
            name for name, _, documentation in _options(target) if f"{name}:" not in documentation
        ]
        assert not untyped, f"options without a type: {untyped}"
        assert not silent, f"options that no docstring's Args section describes: {silent}"

    @launches
    def test_listing_imports_neither_torch_nor_the_plugin(self) -> None:
        """`core list-...` shows the alias, and imports neither torch nor the plugin's module for
        it.
        """
        if self.registry.spec(self.alias).provider == IN_PROCESS:
            pytest.skip(f"{self.alias} was registered in this process")
        loaded = _loaded_by_listing(self.kind, tuple(sys.path))
        assert loaded.isdisjoint({*self.heavy_modules, "torch", self._module})

    @launches
    def test_import_leaves_heavy_libraries_alone(self) -> None:
        """To import the plugin's module is not to import the library that it wraps
        (`heavy_modules`).
        """
        loaded = _changed_by_importing(self._module, tuple(sys.path))["loaded"]
        assert {*self.heavy_modules}.isdisjoint(loaded)

    @launches
    def test_import_changes_nothing(self) -> None:
        """Importing the plugin's module sets no variable, starts no thread, joins no group, touches
        no device.
        """
        report = _changed_by_importing(self._module, tuple(sys.path))
        found = {name: value for name, value in report.items() if value and name != "loaded"}
        assert not found, f"importing {self._module} has changed: {found}"

    def test_metadata_names_known_groups(self) -> None:
        """Every `core.*` entry-point group of the distribution is one that core reads."""
        known = {kind.group for kind in KINDS.values()} | {
            EXPORTS_GROUP,
            HOOKS_GROUP,
            PRELUDES_GROUP,
        }
        groups = {
            point.group
            for point in self._distribution.entry_points
            if point.group.startswith("core.")
        }
        assert groups <= known, (
            f"core does not read {sorted(groups - known)}; the groups are {sorted(known)}"
        )

    def test_metadata_names_public_attributes(self) -> None:
        """The distribution's entry points for core point to names without an underscore that
        exist.
        """
        points = [
            point for point in self._distribution.entry_points if point.group.startswith("core.")
        ]
        for point in points:
            assert callable(point.load()) or inspect.ismodule(point.load()), point
            names = (point.attr or "").split(".")  # event hooks are a module, without an attribute
            assert not any(name.startswith("_") for name in names), f"{point.value} is private"

    def test_requirement_on_core_is_bounded(self) -> None:
        """The distribution requires core between two releases, and accepts the one that runs."""
        requirements = [Requirement(line) for line in self._distribution.requires or ()]
        bounds = {
            requirement.specifier: requirement
            for requirement in requirements
            if normalize_distribution(requirement.name) in CORE_DISTRIBUTIONS
        }
        assert bounds, f"its metadata doesn't require {' or '.join(CORE_DISTRIBUTIONS)}"
        for bound, requirement in bounds.items():
            assert bound.contains(Version(__version__).base_version, prereleases=True)
            assert not bound.contains(_FAR_FUTURE), f"{requirement} accepts any later release"
            assert not bound.contains("0.0.0"), f"{requirement} accepts any earlier release"

    def test_distribution_contains_its_module(self) -> None:
        """The installed files hold what the entry point names, not a folder that happens to be on
        the path.
        """
        origin = importlib.util.find_spec(self._module)
        assert origin is not None
        assert origin.origin is not None
        path, distribution = Path(origin.origin).resolve(), self._distribution
        source = _editable_source(distribution)
        if source is not None:
            assert path.is_relative_to(source), f"{path} is outside of {source}"
        else:
            files = {Path(str(file.locate())).resolve() for file in distribution.files or ()}
            assert path in files, (
                f"{path} is not among the files of {distribution.name}: a folder on Python's path "
                "hides what is installed, or the wheel lacks it. Run `pytest` rather than `python "
                "-m pytest`, or `pip install -e .`"
            )

    # what they ask --------------------------------------------------------------------------------

    @property
    def _comes_with_core(self) -> bool:
        return self.alias in self.registry and self.registry.spec(self.alias).provider == CORE

    @property
    def _module(self) -> str:
        return self.registry.spec(self.alias).target.partition(":")[0]

    @property
    def _distribution(self) -> importlib.metadata.Distribution:
        provider = self.registry.spec(self.alias).provider
        try:
            return importlib.metadata.distribution(provider)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{self.alias} comes from {provider!r}, which is no installed distribution")

    @property
    def _instance(self) -> _Instance:
        found = _instances.get(type(self))
        if found is None:
            found = _instances[type(self)] = self.alone(lambda: _read(self.make(), self.kind))
        return found


@dataclass(frozen=True)
class _Instance:
    """The class of an instance, which may have to be made in a process of its own."""

    is_of_kind: bool
    class_name: str
    documentation: str | None


_instances: dict[type, _Instance] = {}


def _read(instance: object, kind: str) -> _Instance:
    module, _, name = KINDS[kind].base.partition(":")
    base = getattr(importlib.import_module(module), name)
    return _Instance(isinstance(instance, base), type(instance).__name__, type(instance).__doc__)


@functools.cache
def _loaded_by_listing(kind: str, path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_report(_LISTING, "core.registry", kind=kind, path=path))


@functools.cache
def _changed_by_importing(module: str, path: tuple[str, ...]) -> dict[str, Any]:
    changed: dict[str, Any] = _report(_IMPORTING, "torch", module=module, path=path)
    return changed


def _report(program: str, preload: str, **request: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="core-testing-") as folder:
        done = run_forked(
            Path(folder) / "program.py",
            program,
            [request],
            preload=preload,
            timeout_s=_IMPORT_TIMEOUT_S,
        )
    assert done.returncode == 0, f"{request} has failed:\n{done.stderr}"
    return json.loads(done.stdout)


def _options(target: Any) -> Iterator[tuple[str, inspect.Parameter, str]]:
    """Name, parameter and the docstrings that may describe it, of a class or factory; not of what
    it passes on.
    """
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type) and target.__init__ is object.__init__:  # type: ignore[misc]  # it is only compared
        return
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]  # of this very class
    owners: Sequence[Any] = target.__mro__ if isinstance(target, type) else [target]
    documentation = "\n".join(
        text
        for owner in owners
        for text in (owner.__doc__, getattr(owner.__init__, "__doc__", ""))
        if text
    )
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    code = getattr(inspect.unwrap(function), "__code__", None)
    for name, parameter in inspect.signature(function).parameters.items():
        # A `__signature__` may show what is passed on, too.
        is_own = code is None or name in code.co_varnames
        if name != "self" and parameter.kind not in variadic and is_own:
            yield name, parameter, documentation


def _editable_source(distribution: importlib.metadata.Distribution) -> Path | None:
    """The checkout that an editable install points to."""
    text = distribution.read_text("direct_url.json")
    direct = json.loads(text) if text else {}
    if not direct.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(direct["url"]).path)).resolve()
