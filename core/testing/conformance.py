"""What the suites of all kinds have in common: what is left out, what is known to fail, what a package must be like."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pytest

from core.registry import REGISTRIES
from core.testing.packaging import PackagingTests
from core.testing.ranks import Backend
from core.testing.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from core import Capability
    from core.registry import Registry

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


def needs(capability: Capability) -> Callable[[F], F]:
    """Mark a test that runs only for those who declare a capability; for others it is skipped, with its name."""

    def mark(test: F) -> F:
        test.needs = capability  # type: ignore[attr-defined]
        return test

    return mark


def launches(test: F) -> F:
    """Mark a test that makes processes of its own, and so stays out of the one that `own_process` makes."""
    test.launches = True  # type: ignore[attr-defined]
    return test


class Conformance(PackagingTests, Generic[T]):
    """The tests of one plugin. Its subclasses, one a kind, are meant to be subclassed by plugin authors.

    Attributes:
        alias: under which the plugin is offered, also in the qualified form `"core-acme:acme"`.
        options: given to the class or factory.
        heavy_modules: top-level names of libraries that the plugin's module must not import before it is used.
        known_failures: reason by name, as in `{"test_pickles": "..."}` or `{"test_reduces[int64]": "..."}`. These are
            expected to fail; one that passes is a failure of this list.
        own_process: run each test in a process of its own. For libraries that leave threads or global state behind.
    """

    kind: ClassVar[str]
    alias: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    heavy_modules: ClassVar[tuple[str, ...]] = ()
    known_failures: ClassVar[Mapping[str, str]] = {}
    own_process: ClassVar[bool] = False
    is_alone: ClassVar[bool] = False  # in the process that `own_process` makes

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.known_failures:
            if not callable(getattr(cls, name.partition("[")[0], None)):
                raise TypeError(f"{cls.__name__}.known_failures names {name!r}, and there is no such test.")

    @property
    def registry(self) -> Registry[T]:
        """Where plugins of this kind are found."""
        return REGISTRIES[self.kind]

    def make(self, **options: Any) -> T:
        """A new instance. Override it if options depend on the machine."""
        return self.registry.create(self.alias, **{**self.options, **options})

    def alone(self, function: Callable[[], Any]) -> Any:
        """Call a function in a process of its own, from which this one learns the result only."""
        if self.is_alone:
            return function()
        return Backend(lambda: "single_device").run(lambda rank: function())[0]

    def declared(self) -> Capability | None:
        """What the plugin says that it can do; None for kinds that declare nothing."""
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
        name = request.node.name
        needed = self._needed(request)
        report_of(request.config).begin(request.node.nodeid, self.alias, name, needed)
        if reason := self.known_failures.get(name, self.known_failures.get(name.partition("[")[0])):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
        declared = self.declared()
        if needed is not None and declared is not None and (missing := needed & ~declared):
            pytest.skip(f"{self.alias} does not declare {missing.name}, for {name}")

    @staticmethod
    def _needed(request: pytest.FixtureRequest) -> Capability | None:
        needed: Capability | None = getattr(request.function, "needs", None)
        parameters = getattr(request.node, "callspec", None)
        for value in parameters.params.values() if parameters is not None else ():
            if (more := getattr(value, "needs", None)) is not None:
                needed = more if needed is None else needed | more
        return needed
