"""All offers, each with its status. Choosing, listing and the error messages all go by them."""

from __future__ import annotations

import enum
import functools
import re
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from core.contract.kinds import KINDS
from core.registry.builtins import BUILTIN_ALIASES, CORE, RESERVED_WORDS
from core.registry.metadata import required_name, split_target
from core.registry.names import IN_PROCESS
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.specifiers import SpecifierSet

    from core.contract.spec import Spec
    from core.registry.discovery import Provider


class Status(enum.StrEnum):
    """The status of an offer: usable, or the reason against it. Of several reasons, the first of
    this list is given.
    """

    BLOCKED = "blocked"
    """The environment, or the plugin manager, keeps it out."""
    BROKEN = "broken"
    """Its target isn't `module:attribute`, or its metadata can't be read."""
    INCOMPATIBLE = "incompatible"
    """Its provider requires another release of core."""
    RESERVED = "reserved"
    """The alias belongs to core; only the qualified name chooses this one."""
    CONFLICT = "conflict"
    """Another provider offers the alias as well; the qualified name chooses."""
    SHADOWED = "shadowed"
    """Another copy of the same distribution hides it."""
    OK = "ok"


class Offer(NamedTuple):
    """A spec and its status. All texts are printable.

    Attributes:
        spec: what is offered.
        version: of the provider; empty for what was registered in the running process.
        status: whether it can be used by its alias.
        detail: why not; empty if it can.
        summary: one line: the spec's own, or else the provider's.
    """

    spec: Spec
    version: str
    status: Status = Status.OK
    detail: str = ""
    summary: str = ""

    def __str__(self) -> str:
        return f"{self.spec.provider} {self.version}".rstrip()


def is_reserved(kind: str, alias: str) -> bool:
    """True if only core may offer this alias."""
    return (kind, alias) in BUILTIN_ALIASES or (kind, alias) in RESERVED_WORDS


def has_right(spec: Spec) -> bool:
    """True if a spec's provider has a right to its alias."""
    return spec.provider == CORE or not is_reserved(spec.kind, spec.alias)


def classify(
    specs: Iterable[Spec],
    blocked: Iterable[tuple[Spec, str]],
    providers: Mapping[str, Provider],
    core_version: str,
) -> tuple[Offer, ...]:
    """All specs of one kind as offers, each with its status.

    Args:
        specs: what is let in.
        blocked: what isn't, each with the reason.
        providers: what is known about each provider, by name.
        core_version: the release that runs.

    Returns:
        All of them, by alias and provider.
    """
    # Two kinds of offers are no rivals: those without a right to the alias, and blocked ones, so
    # that blocking one of two ends their conflict.
    rivals: dict[str, list[Spec]] = defaultdict(list)
    specs = tuple(specs)
    for spec in specs:
        if has_right(spec):
            rivals[spec.alias].append(spec)
    offers = []
    for spec in specs:
        provider = providers.get(spec.provider)
        status, detail = _judge(spec, rivals[spec.alias], provider, core_version)
        offers.append(_offer(spec, status, detail, provider))
    for spec, reason in blocked:
        offers.append(_offer(spec, Status.BLOCKED, reason, providers.get(spec.provider)))
    return tuple(sorted(offers, key=attrgetter("spec.alias", "spec.provider", "spec.target")))


def _judge(
    spec: Spec, rivals: list[Spec], provider: Provider | None, core_version: str
) -> tuple[Status, str]:
    # In the order of `Status`.
    parts = split_target(spec.target)
    if spec.provider != IN_PROCESS and (parts is None or (not parts[1] and spec.kind in KINDS)):
        detail = f"its target is {spec.target!r}, where 'module:attribute' was expected"
        return Status.BROKEN, detail
    if provider is not None:
        for line in provider.requires:
            reason = _exclusion(line, core_version)
            if reason:
                return Status.INCOMPATIBLE, printable(reason)
    if spec not in rivals:
        return Status.RESERVED, "the alias belongs to core"
    if len(rivals) == 1:
        return Status.OK, ""
    others = ", ".join(sorted({rival.provider for rival in rivals} - {spec.provider}))
    detail = f"{spec.provider} offers this alias more than once"
    if others:
        detail = f"also offered by {others}; {spec.qualified_name!r} chooses this one"
    return Status.CONFLICT, detail


def _offer(spec: Spec, status: Status, detail: str, provider: Provider | None) -> Offer:
    if provider is None:
        return Offer(spec, "", status, detail, spec.summary)
    return Offer(spec, provider.version, status, detail, spec.summary or provider.summary)


@functools.cache
def _exclusion(line: str, core_version: str) -> str:
    """The reason why a provider with this line about core among its `Requires-Dist` can't be used
    with this release; empty if it can.
    """
    from packaging.specifiers import InvalidSpecifier
    from packaging.version import Version

    try:
        specifier = _specifier(line)
    except (InvalidSpecifier, ValueError) as cause:
        return f"its requirement {line!r} can't be read: {str(cause).splitlines()[0]}"
    # `>=0.2` rejects 0.2.dev3 by the letter, and with it every development checkout: the base
    # version counts as well.
    versions = (core_version, Version(core_version).base_version)
    if any(specifier.contains(version, prereleases=True) for version in versions):
        return ""
    name = required_name(line)
    return f"it requires {name}{specifier}, and this is {name} {core_version}"


def _specifier(line: str) -> SpecifierSet:
    """The releases that a requirement accepts; all, where its marker doesn't hold here."""
    from packaging.specifiers import SpecifierSet

    plain = re.fullmatch(r"\s*[\w.-]+\s*\(?([<>=!~][^;\[@()]*)\)?\s*", line)
    if plain:
        # without the parser of requirements, whose import takes 10 ms
        return SpecifierSet(plain[1])
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return requirement.specifier
    return SpecifierSet()
