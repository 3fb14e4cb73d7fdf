"""The errors that choosing and loading a plugin can end in. Each says what was asked, what is
there, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.errors import (
    AliasConflictError,
    BlockedPluginError,
    IncompatiblePluginError,
    PluginLoadError,
    UnknownAliasError,
)
from core.contract.kinds import KINDS
from core.registry.builtins import RESERVED_WORDS
from core.registry.known_names import OTHER_NAMES
from core.registry.known_plugins import known_aliases, known_plugins, missing, pip_install
from core.registry.names import IN_PROCESS, split_name
from core.registry.offers import Offer, Status
from core.text.spelling import near_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.contract.spec import Spec
    from core.registry.manager import PluginManager

_ARGUMENTS = ("strategy", "accelerator", "precision")
_MOST_LISTED = 8


def written(kind: str, name: str) -> str:
    """A name as a user writes it: `strategy="core-acme:acme"`."""
    return f'{kind}="{name}"' if kind in _ARGUMENTS else f'"{name}"'


def unknown(kind: str, name: str, manager: PluginManager) -> UnknownAliasError:
    """The error for a name that no provider offers."""
    provider, alias = split_name(name)
    near = _near(kind, alias, manager)
    if provider is not None:
        sentences = [*_about_provider(kind, provider, alias, manager)]
    elif (kind, alias) in OTHER_NAMES:
        sentence, meant = OTHER_NAMES[kind, alias]
        near, sentences = list(meant), [sentence, *_install_for(kind, meant, manager)]
    else:
        sentences = [*_about_alias(kind, alias, manager)] or [*_did_you_mean(kind, near, manager)]
    listed = f" {_available(kind, manager)}" if provider is None else ""
    message = f"Unknown {kind} {name!r}. {' '.join(sentences)}".rstrip() + listed
    return UnknownAliasError(message, kind=kind, alias=name, near=near)


def reserved(offers: Sequence[Offer]) -> AliasConflictError:
    """The error for a reserved word that plugins offer."""
    spec = offers[0].spec
    claim = _reserved_word(spec.kind, spec.alias)
    others = ", ".join(
        f"{offer} offers it too: {written(spec.kind, offer.spec.qualified_name)}"
        for offer in offers
    )
    return AliasConflictError(
        f"{claim} {others} chooses that one.", specs=[offer.spec for offer in offers]
    )


def taken(kind: str, alias: str, offers: Sequence[Offer]) -> AliasConflictError:
    """The error for a registration of an alias that belongs to core, or to an installed plugin."""
    if (kind, alias) in RESERVED_WORDS:
        claim = _reserved_word(kind, alias)
    else:
        claim = f"The {kind} {alias!r} belongs to {offers[0]}, and a registration can't replace it."
    advice = "Register under another alias, or pass the class itself."
    return AliasConflictError(f"{claim} {advice}", specs=[offer.spec for offer in offers])


def registered_already(spec: Spec) -> AliasConflictError:
    """The error for a registration of the alias of an earlier one."""
    return AliasConflictError(
        f"The {spec.kind} {spec.alias!r} is registered already, as {spec.target}. "
        f"Register under another alias, remove that one first, or pass override=True.",
        specs=[spec],
    )


def conflict(offers: Sequence[Offer]) -> AliasConflictError:
    """The error for an alias that several providers offer, or one more than once."""
    spec = offers[0].spec
    providers = list(dict.fromkeys(map(str, offers)))
    if len(providers) == 1:
        targets = " and ".join(offer.spec.target for offer in offers)
        message = (
            f"{providers[0]} offers the {spec.kind} {spec.alias!r} more than once: {targets}. "
            f"Import the one that you want and pass it, and tell the authors of {spec.provider}."
        )
    else:
        forms = " or ".join(
            dict.fromkeys(written(spec.kind, offer.spec.qualified_name) for offer in offers)
        )
        message = (
            f"The {spec.kind} {spec.alias!r} is offered by {' and by '.join(providers)}. "
            f"Choose one: {forms}."
        )
    return AliasConflictError(message, specs=[offer.spec for offer in offers])


def blocked(offers: Sequence[Offer]) -> BlockedPluginError:
    """The error for an alias whose providers are all kept out."""
    spec = offers[0].spec
    reasons = "; ".join(f"{offer} offers it, but {offer.detail}" for offer in offers)
    return BlockedPluginError(
        f"The {spec.kind} {spec.alias!r} is blocked: {reasons}. Change that, or choose another "
        f"{spec.kind}."
    )


def incompatible(offer: Offer) -> IncompatiblePluginError:
    """The error for an offer whose provider was made for another release of core."""
    spec = offer.spec
    return IncompatiblePluginError(
        f"The {spec.kind} {spec.alias!r} of {offer} was not imported: {offer.detail}. "
        f"Try {pip_install(spec.provider, '--upgrade')}, or install a release of core that it "
        "accepts."
    )


def not_loaded(offer: Offer, detail: str, cause: BaseException | None = None) -> PluginLoadError:
    """The error for a plugin that was asked for, and can't be imported or isn't what it says."""
    spec = offer.spec
    return PluginLoadError(
        f"The {spec.kind} {spec.alias!r} of {offer} can't be loaded from {spec.target!r}: "
        f"{detail}. {_next_step(offer, cause)}",
        spec=spec,
    )


def missing_class(kind: str, name: str, distribution: str, manager: PluginManager) -> ImportError:
    """The error for the import from core of a well-known class whose distribution doesn't offer it
    here.
    """
    advice = " ".join(_install(distribution, manager))
    return ImportError(f"The {kind} class {name} comes with {distribution}. {advice}", name=name)


def _reserved_word(kind: str, alias: str) -> str:
    return f"The word {alias!r} {RESERVED_WORDS[kind, alias]}; no {kind} can take it."


def _next_step(offer: Offer, cause: BaseException | None) -> str:
    module = offer.spec.target.partition(":")[0]
    provider = offer.spec.provider
    if provider == IN_PROCESS:
        return "This program has registered it: mend it there."
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        if module == cause.name or module.startswith(f"{cause.name}."):
            return (
                f"The installation is incomplete: try {pip_install(provider, '--force-reinstall')}."
            )
        return (
            f"Install what provides the module {cause.name!r}; see the documentation of {provider}."
        )
    return (
        f"Tell the authors of {provider}, or leave it out with CORE_DISABLE_PLUGINS={provider}; "
        f"`core list-{_plural(offer.spec.kind)} --all` shows what else is there."
    )


def _plural(kind: str) -> str:
    return KINDS[kind].plural if kind in KINDS else "plugins"


def _about_alias(kind: str, alias: str, manager: PluginManager) -> Iterable[str]:
    if (kind, alias) in RESERVED_WORDS:
        yield f"The word {RESERVED_WORDS[kind, alias]}; it names no plugin."
    elif owner := known_aliases(kind).get(alias):
        yield f"It comes with {owner}."
        yield from _install(owner, manager)


def _about_provider(kind: str, provider: str, alias: str, manager: PluginManager) -> Iterable[str]:
    offered = [
        offer.spec.alias for offer in manager.offers(kind) if offer.spec.provider == provider
    ]
    if offered:
        yield f"{_named(provider, manager)} offers no {kind} {alias!r}, but: {', '.join(offered)}."
    elif provider in manager.providers:
        yield f"{_named(provider, manager)} offers no {kind}."
    elif provider in known_plugins():
        yield from _install(provider, manager)
    else:
        yield f"No installed package {provider!r} offers anything to core."
        near = near_names(
            provider,
            {offer.spec.provider for offer in manager.offers(kind) if offer.spec.alias == alias},
        )
        if near:
            yield f"Did you mean {' or '.join(repr(f'{name}:{alias}') for name in near)}?"


def _install(distribution: str, manager: PluginManager) -> Iterable[str]:
    problems = [problem for problem in manager.problems if problem.source == distribution]
    if problems:
        yield f"Part of {distribution} is there, but {problems[0].detail}."
    elif version := manager.version(distribution):
        upgrade = pip_install(distribution, "--upgrade")
        yield f"The installed {distribution} {version} does not offer it: try {upgrade}."
    else:
        yield missing(distribution)


def _install_for(kind: str, aliases: Sequence[str], manager: PluginManager) -> Iterable[str]:
    """Sentences about the packages to install for aliases of which none is offered."""
    if not {offer.spec.alias for offer in manager.offers(kind)} & set(aliases):
        known = known_aliases(kind)
        for owner in dict.fromkeys(known[alias] for alias in aliases if alias in known):
            yield from _install(owner, manager)


def _near(kind: str, alias: str, manager: PluginManager) -> list[str]:
    """The aliases that may be meant: that of the class that is named, or else those that look like
    it.
    """
    known = (item for kinds in known_plugins().values() for item in kinds.get(kind, {}).items())
    targets = {
        **dict(known),
        **{offer.spec.alias: offer.spec.target for offer in manager.offers(kind)},
    }
    targets.pop(alias, None)
    forms = {
        one: (one, target.rpartition(":")[2], one.partition("_")[2])
        for one, target in targets.items()
    }
    # another spelling, the name of the class, the alias without its first word
    for index in range(3):
        if meant := [
            one for one, each in forms.items() if _bare(each[index], kind) == _bare(alias, kind)
        ]:
            return meant
    return near_names(alias, targets)


def _bare(name: str, kind: str) -> str:
    """A name as aliases and classes may have it in common: `"ddp"` for `"DDPStrategy"`, `"stage3"`
    for `"zero_3"`.
    """
    folded = name.casefold().replace("zero_stage", "stage").replace("zero", "stage")
    return folded.replace("_", "").removesuffix(kind.replace(" ", ""))


def _did_you_mean(kind: str, near: Sequence[str], manager: PluginManager) -> Iterable[str]:
    here = {offer.spec.alias for offer in manager.offers(kind)}
    # "bf16-mixed"
    words = {
        alias: repr(alias.replace("_", "-") if kind == "precision" else alias) for alias in near
    }
    forms = [
        word
        if alias in here
        else f"{word} (`pip install {known_aliases(kind)[alias]}`, as README says)"
        for alias, word in words.items()
    ]
    if forms:
        yield f"Did you mean {' or '.join(forms)}?"


def _available(kind: str, manager: PluginManager) -> str:
    aliases = [offer.spec.alias for offer in manager.offers(kind) if offer.status is Status.OK]
    if len(aliases) > _MOST_LISTED:
        return f"`core list-{KINDS[kind].plural}` shows the {len(aliases)} that are installed."
    return f"Installed: {', '.join(aliases)}." if aliases else "None is installed."


def _named(provider: str, manager: PluginManager) -> str:
    return f"{provider} {manager.version(provider)}".rstrip()
