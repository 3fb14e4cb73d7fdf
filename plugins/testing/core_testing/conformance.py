"""The base of the suites of all kinds: skipped tests, known failures, and the tests of a plugin's package."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pytest

from core.registry import REGISTRIES
from core_testing.packaging import PackagingTests
from core_testing.ranks import Backend
from core_testing.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core import Capability
    from core.registry import Registry
    from core_testing.ranks import Rank

_KIT = "core_testing."
_FIXTURES = ("request", "folder", "tmp_path", "tmp_path_factory", "_gate", "_need_devices")
T = TypeVar("T")


class Conformance(PackagingTests, Generic[T]):
    """The tests of one plugin. Its subclasses, one a kind, are meant to be subclassed by plugin authors.

    Attributes:
        alias: under which the plugin is offered, also in the qualified form `"core-acme:acme"`.
        options: given to the class or factory.
        heavy_modules: top-level names of libraries that the plugin's module must not import before it is used.
        known_failures: reason by name, as in `{"test_pickles": "..."}` or `{"test_reduces[int64]": "..."}`. These are
            expected to fail; one that passes is a failure of this list.
        own_process: run each test in a process of its own. For libraries that leave threads or global state behind.
        ground: what a report calls the ground that it ran on, such as `"simulated"`; None is the accelerator's name.
    """

    kind: ClassVar[str]
    alias: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    heavy_modules: ClassVar[tuple[str, ...]] = ()
    known_failures: ClassVar[Mapping[str, str]] = {}
    own_process: ClassVar[bool] = False
    ground: ClassVar[str | None] = None
    is_alone: ClassVar[bool] = False  # in the process that `own_process` makes
    keeps_ranks: bool = False  # the ranks of this test, for the next one

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.known_failures:
            if not callable(getattr(cls, name.partition("[")[0], None)):
                raise TypeError(f"{cls.__name__}.known_failures names {name!r}, and there is no such test.")

    @property
    def registry(self) -> Registry[T]:
        """The registry of plugins of this kind."""
        return REGISTRIES[self.kind]

    def make(self, **options: Any) -> T:
        """A new instance. Override it if options depend on the machine."""
        return self.registry.create(self.alias, **{**self.options, **options})

    def alone(self, function: Callable[[], Any]) -> Any:
        """Call a function in a process of its own, from which this one learns the result only."""
        if self.is_alone:
            return function()
        variables = dict(os.environ)

        def work(rank: Rank) -> Any:
            # A launcher's process has variables of its rank, and may be asked about a job that has others.
            os.environ.clear()
            os.environ.update(variables)
            return function()

        return Backend(lambda: "single_device").run(work)[0]

    def declared(self) -> Capability | None:
        """The capabilities that the plugin declares; None for kinds that declare nothing."""
        return None

    def left_out(self, test: str) -> str | None:
        """The reason why a test of the suite says nothing about this plugin; None if it does."""
        return None

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """An empty one, gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="core-testing-") as name:
            yield Path(name)

    @pytest.fixture(autouse=True)
    def _gate(self, request: pytest.FixtureRequest) -> None:
        """Skip what isn't declared, expect known failures, and note both for the table at the end."""
        if not self.alias:
            pytest.skip(f"{type(self).__name__} names no alias")
        self.keeps_ranks = _is_of_the_kit(request)
        name = request.node.name
        needed, excluded = _marked(request, "needs"), _marked(request, "unless")
        report_of(request.config).begin(request.node.nodeid, self.alias, name, needed)
        if reason := self.known_failures.get(name, self.known_failures.get(name.partition("[")[0])):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
        if reason := self.left_out(name.partition("[")[0]):
            pytest.skip(reason)
        declared = self.declared()
        if needed is not None and declared is not None and (missing := needed & ~declared):
            pytest.skip(f"{self.alias} does not declare {missing.name}, for {name}")
        if excluded is not None and declared is not None and (there := excluded & declared):
            pytest.skip(f"{self.alias} declares {there.name}, which leaves no room for {name}")


def _marked(request: pytest.FixtureRequest, mark: str) -> Capability | None:
    """The capabilities that a mark of the test and of its parameters names; None for no mark."""
    found: Capability | None = getattr(request.function, mark, None)
    parameters = getattr(request.node, "callspec", None)
    for value in parameters.params.values() if parameters is not None else ():
        if (more := getattr(value, mark, None)) is not None:
            found = more if found is None else found | more
    return found


def _is_of_the_kit(request: pytest.FixtureRequest) -> bool:
    """True if the kit knows all that a test does: ranks that run already wouldn't see what an author's test patches."""
    callspec = getattr(request.node, "callspec", None)
    known = {*_FIXTURES, *(callspec.params if callspec is not None else ())}
    return request.function.__module__.startswith(_KIT) and known.issuperset(request.fixturenames)
