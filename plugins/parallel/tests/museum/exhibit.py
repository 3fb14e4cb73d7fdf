"""A bug that others have had, rebuilt: a program, and perhaps a function of core-parallel that is
replaced by one that is wrong.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from language import Step


@dataclass(frozen=True)
class Exhibit:
    """One bug.

    Attributes:
        name: of the bug.
        thread: the public thread that reports it.
        wrong: what is wrong.
        mesh: options of the strategy.
        make: makes the module that is trained.
        fault: a function of core-parallel, by its owner and its name, and what stands in its place.
        options: of the Trainer.
        kit: the suite of the conformance kit, and its test, that fails.
    """

    name: str
    thread: str
    wrong: str
    mesh: dict[str, Any]
    make: Any = Step
    fault: tuple[Any, str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    kit: tuple[Any, str] | None = None

    @contextmanager
    def faulty(self):
        """A context in which core-parallel has the bug."""
        with ExitStack() as until_end:
            if self.fault is not None:
                until_end.enter_context(mock.patch.object(*self.fault))
            yield
