"""Turns names and objects into parts: identifies them, and finds those registered parts that are
here.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import Absent, AliasConflictError, Broken, ConfigurationError, CoreError, Found
from core.registry import REGISTRIES, Offer, Status
from core.registry.names import IN_PROCESS, split_name
from core.resolve.decision import Choice, Identity
from core.resolve.time_limit import TimeIsUp, time_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.contract.accelerator import Detection

DETECTION_TIMEOUT_S = 30.0
"""Time limit for a part that wasn't asked for by name, to be imported and to answer whether it is
here.
"""
IDLE_TIMEOUT_S = 5.0
"""Of it, the most for which nothing is computed or read: one that hangs is to cost every start
little.
"""

_given_up: set[tuple[str, str, str]] = set()
"""Kind, name and version of installed parts whose import or detection hung in this process: they
aren't asked again.
"""


class Candidate(NamedTuple):
    """A registered part, and whether it is here."""

    name: str
    offer: Offer
    detection: Detection

    @property
    def is_here(self) -> bool:
        """True if it was found, with at least one device or process."""
        return isinstance(self.detection, Found) and self.detection.count > 0

    @property
    def priority(self) -> int:
        """The priority of a candidate that is here."""
        return self.detection.priority if isinstance(self.detection, Found) else 0

    def __str__(self) -> str:
        reason = "it counts none" if isinstance(self.detection, Found) else self.detection.reason
        return f"{self.name}: {reason}"


def create(kind: str, name: str | Offer, reason: str) -> Choice[Any]:
    """Make the part of a registered name, or of an offer that was chosen already.

    Raises:
        ConfigurationError: no provider offers it, or it can't be used; see `core.registry`.
        PluginLoadError: it can't be imported.
    """
    offer = name if isinstance(name, Offer) else REGISTRIES[kind].offer(name)
    return Choice(kind, REGISTRIES[kind].create(offer), _identity(offer), reason)


def refuse_class(kind: str, argument: object, base: type) -> None:
    """Refuse a class where an instance is expected.

    Raises:
        ConfigurationError: with the form to write.
    """
    if isinstance(argument, type) and issubclass(argument, base):
        name = argument.__name__
        raise ConfigurationError(f"{kind}={name} is a class: pass an instance, {kind}={name}().")


def identify(kind: str, part: object) -> Identity:
    """Name an object that the user passed: by its alias if its class is a registered one, and else
    by its class.
    """
    for offer in REGISTRIES[kind].offers():
        # The class of an object is imported already, so an offer whose module isn't can't be the
        # one.
        if offer.status is Status.OK and _loaded(offer.spec.target) is type(part):
            return _identity(offer)
    return Identity(f"{type(part).__module__}.{type(part).__qualname__}")


def survey(kind: str) -> list[Candidate]:
    """Ask every registered part of a kind whether it is here.

    One that can't be imported, crashes or doesn't answer in time is left out with a warning: it
    wasn't asked for.

    Raises:
        ConfigurationError: one is here, and finds its surroundings contradictory.
    """
    candidates = []
    for offer in REGISTRIES[kind].offers():
        if offer.status in (Status.OK, Status.CONFLICT):
            # Those in conflict are asked too, each by its qualified name: only one of them may be
            # here.
            name = offer.spec.alias if offer.status is Status.OK else offer.spec.qualified_name
            key = (kind, offer.spec.qualified_name, str(offer.version))
            try:
                if key in _given_up:
                    raise TimeIsUp("it hung before in this process")
                with time_limit(DETECTION_TIMEOUT_S, IDLE_TIMEOUT_S):
                    candidates.append(ask(kind, offer if offer.status is Status.OK else name))
            except KeyboardInterrupt:
                raise
            except BaseException as cause:
                # a plugin can also call sys.exit(), or never come to an end
                if offer.spec.provider != IN_PROCESS and isinstance(
                    cause.__cause__ or cause, TimeIsUp
                ):
                    _given_up.add(key)
                # A part that is here may report the user's own mistake; a conflict of aliases isn't
                # one.
                if isinstance(cause, ConfigurationError) and not isinstance(
                    cause, AliasConflictError
                ):
                    raise
                advice = f". CORE_DISABLE_PLUGINS={offer.spec.qualified_name} leaves it out."
                detail = failure(cause) + advice * (not isinstance(cause, CoreError))
                message = f"The {kind} {name!r} of {offer} was not considered. {detail}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
    return candidates


def failure(cause: BaseException) -> str:
    """The text of what went wrong when a part was asked; core's own errors say it already."""
    return str(cause) if isinstance(cause, CoreError) else f"{type(cause).__name__}: {cause}"


def ask(kind: str, name: str | Offer) -> Candidate:
    """Ask one registered part whether it is here."""
    registry = REGISTRIES[kind]
    offer = name if isinstance(name, Offer) else registry.offer(name)
    target = registry.get(offer)
    detector: object = target if isinstance(target, type) else registry.create(offer)
    return Candidate(offer.spec.alias if isinstance(name, Offer) else name, offer, detect(detector))


def detect(part: Any) -> Detection:
    """Ask a part, or its class, whether it is here.

    Raises:
        TypeError: it answers something else.
    """
    answer = part.detect()
    if not isinstance(answer, Found | Absent | Broken):
        raise TypeError(
            f"detect() returned {answer!r}; expected Found(count, priority), Absent(reason) or "
            "Broken(reason)"
        )
    return answer


def best(kind: str, candidates: Iterable[Candidate], explicit: str) -> Candidate:
    """The candidate of highest priority among those that are here.

    Args:
        kind: of the candidates.
        candidates: that were asked.
        explicit: how a user names one, for messages; `{}` stands for the name.

    Raises:
        ConfigurationError: one is broken, several have the same priority, or none is here.
    """
    candidates = tuple(candidates)
    for candidate in candidates:
        # An error even where others are here: to pass over a broken GPU would be to train on the
        # CPU without a word.
        if isinstance(candidate.detection, Broken):
            others = [other.name for other in candidates if other.is_here]
            advice = (
                f" Repair it, or choose another one yourself: {explicit.format(others[-1])}."
                if others
                else ""
            )
            raise ConfigurationError(
                f"The {kind} {candidate.name!r} ({candidate.offer}) is here, but it can't be used: "
                f"{candidate.detection.reason}.{advice}"
            )
    here = sorted(
        (other for other in candidates if other.is_here), key=lambda other: -other.priority
    )
    if not here:
        raise ConfigurationError(
            f"No {kind} is here ({why_absent(candidates)}). Name the one that you want."
        )
    if rivals := [other.name for other in here if other.priority == here[0].priority][1:]:
        raise ConfigurationError(
            f"Several {kind}s are here with the same priority: {here[0].name!r} and {rivals[0]!r}. "
            f"Choose one: {explicit.format(here[0].name)} or {explicit.format(rivals[0])}."
        )
    return here[0]


def precedence(chosen: Candidate, candidates: Iterable[Candidate]) -> str:
    """The reason why `chosen` won."""
    others = [other.name for other in candidates if other.is_here and other is not chosen]
    return (
        f"auto; it is here, and comes before {', '.join(others)}"
        if others
        else "auto; nothing else is here"
    )


def why_absent(candidates: Iterable[Candidate]) -> str:
    """A reason for each of those that are not here."""
    return "; ".join(str(candidate) for candidate in candidates if not candidate.is_here)


def same_part(kind: str, one: object, other: object) -> bool:
    """True if two arguments mean the same part: one object, one name, or a name and an object of
    its class.
    """
    if not isinstance(one, str) and not isinstance(other, str):
        return one is other
    one_name, other_name = (
        split_name(part)[1] if isinstance(part, str) else identify(kind, part).alias
        for part in (one, other)
    )
    return one_name == other_name


def _identity(offer: Offer) -> Identity:
    return Identity(offer.spec.alias, offer.spec.provider, offer.version)


def show(part: object) -> str:
    """A part that the user passed, for a message: its name, or the class of an object."""
    return repr(part) if isinstance(part, str) else type(part).__name__


def _loaded(target: str) -> object:
    """The object of `module:attribute` if its module is imported already. Nothing is imported."""
    module, _, attribute = target.partition(":")
    part: Any = sys.modules.get(module)
    for name in attribute.split("."):
        part = getattr(part, name, None)
    return part
