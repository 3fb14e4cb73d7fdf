"""The base of the suites of all kinds: skipped tests, known failures, and the tests of a plugin's
package.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pytest

from core.registry import REGISTRIES
from core_testing.packaging import PackagingTests
from core_testing.ranks import Backend
from core_testing.report import is_of_the_kit, is_of_trainer, marked, report_of
from core_testing.trainer_names import HAS_TRAINER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core import Capability
    from core.registry import Registry
    from core_testing.ranks import Rank

T = TypeVar("T")


class Conformance(PackagingTests, Generic[T]):
    """The tests of one plugin. Its subclasses, one a kind, are meant to be subclassed by plugin
    authors.

    Attributes:
        alias: under which the plugin is offered, also in the qualified form `"core-acme:acme"`.
        options: given to the class or factory.
        heavy_modules: top-level names of libraries that the plugin's module must not import before
            it is used.
        known_failures: reason by name, as in `{"test_pickles": "..."}` or
            `{"test_reduces[int64]": "..."}`. These are expected to fail; one that passes is a
            failure of this list.
        own_process: run each test in a process of its own. For libraries that leave threads or
            global state behind.
        ground: what a report calls the ground that it ran on, such as `"simulated"`; None is the
            accelerator's name.
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
                raise TypeError(
                    f"{cls.__name__}.known_failures names {name!r}, and there is no such test."
                )

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
            # A launcher's process has variables of its rank, and may be asked about a job that has
            # others.
            os.environ.clear()
            os.environ.update(variables)
            return function()

        return Backend(lambda: "single_device").run(work)[0]

    def declared(self) -> Capability | None:
        """The capabilities that the plugin declares; None for kinds that declare nothing."""
        return None

    def left_out(self, test: str) -> str | None:
        """The reason why a test of the suite says nothing about this plugin; None if it does."""
        if test == "test_requirement_on_core_is_bounded" and self._comes_with_core:
            return "it comes with core itself"
        return None

    def absent(self, test: str) -> str | None:
        """The reason why a test can't run on this machine, such as missing devices; None if it
        can.
        """
        return None

    def why_not(
        self, item: pytest.Function, declared: Callable[[], Capability | None]
    ) -> str | None:
        """The reason why a test that pytest has collected says nothing about this plugin; None if
        it does.

        Args:
            item: of a subclass of this suite.
            declared: what the plugin declares; None leaves it open.
        """
        if reason := self.left_out(item.originalname):
            return reason
        if not HAS_TRAINER and is_of_trainer(item):
            return "core-training is not installed, and the test trains with its Trainer"
        needed, excluded = marked(item, "needs"), marked(item, "unless")
        found = declared() if needed is not None or excluded is not None else None
        if found is None:
            return None
        if needed is not None and (missing := needed & ~found):
            return f"{self.alias} does not declare {missing.name}, for {item.name}"
        if excluded is not None and (there := excluded & found):
            return f"{self.alias} declares {there.name}, which leaves no room for {item.name}"
        return None

    def pinned(self) -> Capability | None:
        """The capabilities that the suite's author has pinned; None if they are open."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Add this suite to the report, which leaves out what can't apply. pytest calls it."""
        report_of(metafunc.config).suites.add(type(self))

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """An empty one, gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="core-testing-") as name:
            yield Path(name)

    @pytest.fixture(autouse=True)
    def _gate(self, request: pytest.FixtureRequest) -> None:
        """Skip what isn't declared, expect known failures, and note both for the table at the
        end.
        """
        if not self.alias:
            pytest.skip(f"{type(self).__name__} names no alias")
        self.keeps_ranks = is_of_the_kit(request.node)
        name = request.node.name
        report_of(request.config).begin(
            request.node.nodeid, self.alias, name, marked(request.node, "needs")
        )
        if reason := self.known_failures.get(name, self.known_failures.get(name.partition("[")[0])):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
        if reason := self.why_not(request.node, self.declared) or self.absent(
            request.node.originalname
        ):
            pytest.skip(reason)
