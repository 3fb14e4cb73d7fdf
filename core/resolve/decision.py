"""What was decided, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from core.contract import Strategy

T = TypeVar("T")


class Decision(NamedTuple):
    """One choice.

    Attributes:
        subject: what it is about, such as `"strategy"` or `"devices"`.
        choice: what was chosen, such as `"ddp"` or `"2 (0, 1)"`.
        reason: why, in words that name the argument that led to it.
        provider: who offers it, such as `"core-ddp 0.1.0"`; empty for numbers and for objects that the user passed.
    """

    subject: str
    choice: str
    reason: str
    provider: str = ""


class Identity(NamedTuple):
    """What a part is called, so that ranks can compare it.

    Attributes:
        alias: the registered one, or the class of an object that the user passed.
        provider: name of the distribution; empty for the user's own class.
        version: of the provider.
    """

    alias: str
    provider: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.provider} {self.version}".strip()


class Choice(NamedTuple, Generic[T]):
    """A part that was chosen, with the reason."""

    subject: str
    part: T
    identity: Identity
    reason: str

    @property
    def decision(self) -> Decision:
        """The choice as text."""
        return Decision(self.subject, self.identity.alias, self.reason, str(self.identity))


class Resolution(NamedTuple):
    """What `resolve` made of the user's arguments.

    Attributes:
        strategy: connected: accelerator, devices, precision, checkpoint IO, cluster environment and launcher are set.
        decisions: every choice, in the order in which it was made.
    """

    strategy: Strategy
    decisions: tuple[Decision, ...]

    @property
    def summary(self) -> str:
        """All choices on one line."""
        chosen = {decision.subject: decision for decision in self.decisions}
        strategy = chosen.pop("strategy")
        provider = f" ({strategy.provider})" if strategy.provider else ""
        others = ", ".join(f"{decision.subject} {decision.choice}" for decision in chosen.values())
        return f"strategy {strategy.choice}{provider}, {others}"
