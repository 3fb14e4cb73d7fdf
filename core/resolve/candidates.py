"""Turns names and objects into parts: identifies them, and finds those registered parts that are
here.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from core.contract import Absent, Broken, ConfigurationError, CoreError, Found
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

_given_up: set[tuple[str, str, str]] = set()
"""Kind, name and version of installed parts whose import or detection hung in this process: they
aren't asked again.
"""


class Candidate(NamedTuple):
    """A registered part, and whether it is here."""

    offer: Offer
    detection: Detection

    @property
    def name(self) -> str:
        """By which a user may ask for it."""
        return _name_of(self.offer)

    @property
    def is_here(self) -> bool:
        """True if it was found, with at least one device or process."""
        return isinstance(self.detection, Found) and self.detection.count > 0

    @property
    def priority(self) -> int:
        """The priority of a candidate that is here."""
        assert isinstance(self.detection, Found)
        return self.detection.priority

    def __str__(self) -> str:
        if isinstance(self.detection, Found):
            return f"{self.name}: it counts none"
        return f"{self.name}: {self.detection.reason}"


def create(kind: str, name: str | Offer, reason: str) -> Choice[Any]:
    """Make the part of a registered name, or of an offer that was chosen already.

    Raises:
        ConfigurationError: no provider offers it, or it can't be used; see `core.registry`.
        PluginLoadError: it can't be imported.
    """
    registry = REGISTRIES[kind]
    offer = name
    if isinstance(offer, str):
        offer = registry.offer(offer)
    return Choice(kind, registry.create(offer), _identity(offer), reason)


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


def passed(kind: str, part: Any) -> Choice[Any]:
    """The choice of an object that the user passed."""
    return Choice(kind, part, identify(kind, part), "this instance was passed")


def survey(kind: str) -> list[Candidate]:
    """Ask every registered part of a kind whether it is here.

    One that can't be imported, crashes or doesn't answer in time is left out with a warning: it
    wasn't asked for.

    Raises:
        ConfigurationError: one is here, and finds its surroundings contradictory.
    """
    candidates = []
    for offer in REGISTRIES[kind].offers():
        # Those in conflict are asked too: only one of them may be here.
        if offer.status in (Status.OK, Status.CONFLICT):
            try:
                candidates.append(_ask_in_time(kind, offer))
            except KeyboardInterrupt:
                raise
            except BaseException as cause:
                # a plugin can also call sys.exit(), or never come to an end
                if isinstance(cause, ConfigurationError):
                    raise  # a part that is here may report the user's own mistake
                detail = failure(cause)
                if not isinstance(cause, CoreError):
                    detail += f". CORE_DISABLE_PLUGINS={offer.spec.qualified_name} leaves it out."
                named = f"The {kind} {_name_of(offer)!r} of {offer} was not considered."
                warnings.warn(f"{named} {detail}", RuntimeWarning, stacklevel=2)
    return candidates


def _ask_in_time(kind: str, offer: Offer) -> Candidate:
    key = (kind, offer.spec.qualified_name, str(offer.version))
    if key in _given_up:
        raise TimeIsUp("it hung before in this process")
    try:
        with time_limit(DETECTION_TIMEOUT_S):
            return ask(kind, offer)
    except BaseException as cause:
        if offer.spec.provider != IN_PROCESS and isinstance(cause.__cause__ or cause, TimeIsUp):
            _given_up.add(key)
        raise


def _name_of(offer: Offer) -> str:
    if offer.status is Status.CONFLICT:
        return offer.spec.qualified_name
    return offer.spec.alias


def failure(cause: BaseException) -> str:
    """The text of what went wrong when a part was asked; core's own errors say it already."""
    if isinstance(cause, CoreError):
        return str(cause)
    return f"{type(cause).__name__}: {cause}"


def ask(kind: str, offer: Offer) -> Candidate:
    """Ask one registered part whether it is here."""
    detector: Any = REGISTRIES[kind].get(offer)
    if not isinstance(detector, type):
        detector = REGISTRIES[kind].create(offer)
    return Candidate(offer, detect(detector))


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
    here = [other for other in candidates if other.is_here]
    for candidate in candidates:
        # An error even where others are here: to pass over a broken GPU would be to train on the
        # CPU without a word.
        if isinstance(candidate.detection, Broken):
            advice = ""
            if here:
                advice = (
                    f" Repair it, or choose another one yourself: {explicit.format(here[-1].name)}."
                )
            raise ConfigurationError(
                f"The {kind} {candidate.name!r} ({candidate.offer}) is here, but it can't be used: "
                f"{candidate.detection.reason}.{advice}"
            )
    if not here:
        raise ConfigurationError(
            f"No {kind} is here ({why_absent(candidates)}). Name the one that you want."
        )
    highest = max(other.priority for other in here)
    first, *rivals = [other for other in here if other.priority == highest]
    if rivals:
        names = first.name, rivals[0].name
        raise ConfigurationError(
            f"Several {kind}s are here with the same priority: {names[0]!r} and {names[1]!r}. "
            f"Choose one: {explicit.format(names[0])} or {explicit.format(names[1])}."
        )
    return first


def precedence(chosen: Candidate, candidates: Iterable[Candidate]) -> str:
    """The reason why `chosen` won."""
    others = [other.name for other in candidates if other.is_here and other is not chosen]
    if others:
        return f"auto; it is here, and comes before {', '.join(others)}"
    return "auto; nothing else is here"


def why_absent(candidates: Iterable[Candidate]) -> str:
    """A reason for each of those that are not here."""
    return "; ".join(str(candidate) for candidate in candidates if not candidate.is_here)


def same_part(kind: str, one: object, other: object) -> bool:
    """True if two arguments mean the same part: one object, one name, or a name and an object of
    its class.
    """
    if not isinstance(one, str) and not isinstance(other, str):
        return one is other
    return _alias_of(kind, one) == _alias_of(kind, other)


def _alias_of(kind: str, part: object) -> str:
    if isinstance(part, str):
        return split_name(part)[1]
    return identify(kind, part).alias


def _identity(offer: Offer) -> Identity:
    return Identity(offer.spec.alias, offer.spec.provider, offer.version)


def show(part: object) -> str:
    """A part that the user passed, for a message: its name, or the class of an object."""
    if isinstance(part, str):
        return repr(part)
    return type(part).__name__


def _loaded(target: str) -> object:
    """The object of `module:attribute` if its module is imported already. Nothing is imported."""
    module, _, attribute = target.partition(":")
    part: Any = sys.modules.get(module)
    for name in attribute.split("."):
        part = getattr(part, name, None)
    return part
