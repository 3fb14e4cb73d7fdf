"""The table of mutants: what is wrong with each, and which test must catch it."""

from dataclasses import dataclass, field
from typing import Any

from core.text import first_paragraph


@dataclass(frozen=True)
class Mutant:
    """A plugin that is wrong in one way.

    Attributes:
        plugin: the class; its docstring says what is wrong.
        kind: of plugin, and of its suite.
        test: that must fail.
        passes: a test that must not: the mutant is wrong in this way only.
        attributes: of its suite.
    """

    plugin: Any
    kind: str
    test: str
    passes: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self):
        return self.plugin.__name__

    @property
    def registry(self):
        """The name of its registry: a kind of suite may be one for some plugins of a kind."""
        return self.kind.removeprefix("differing ")

    @property
    def alias(self):
        return f"mutant_{self.name.lower()}"

    @property
    def fault(self):
        text = self.plugin.fault if hasattr(self.plugin, "fault") else self.plugin.__doc__
        return first_paragraph(text)


MUTANTS: list[Mutant] = []


def mutant(test, kind="strategy", passes="test_is_offered_and_made", **attributes):
    """Put a class into the table."""

    def put(plugin):
        MUTANTS.append(Mutant(plugin, kind, test, passes, attributes))
        return plugin

    return put
