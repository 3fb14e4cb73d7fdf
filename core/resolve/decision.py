"""The decisions of `resolve`, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.session import Session

T = TypeVar("T")


class Decision(NamedTuple):
    """One choice.

    Attributes:
        subject: what it is about, such as `"strategy"` or `"devices"`.
        choice: what was chosen, such as `"ddp"` or `"2 (0, 1)"`.
        reason: the reason; it names the argument that led to the choice.
        provider: its provider, as `"core-ddp 0.1.0"`; empty for numbers and for objects that the
            user passed.
    """

    subject: str
    choice: str
    reason: str
    provider: str = ""


class Identity(NamedTuple):
    """The identity of a part, which ranks compare.

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
    """The result of `resolve`: a session of one strategy, and the decisions that led to it.

    Attributes:
        session: connected: accelerator, devices, precision, checkpoint IO, cluster environment and
            launcher are set.
        decisions: every choice, in the order in which it was made.
    """

    session: Session
    decisions: tuple[Decision, ...]

    @property
    def strategy(self) -> Strategy:
        """The strategy that was chosen."""
        return self.session.strategy

    @property
    def summary(self) -> str:
        """All choices on one line."""
        chosen = {decision.subject: decision for decision in self.decisions}
        strategy = chosen.pop("strategy")
        provider = f" ({strategy.provider})" if strategy.provider else ""
        others = ", ".join(f"{decision.subject} {decision.choice}" for decision in chosen.values())
        return f"strategy {strategy.choice}{provider}, {others}"
