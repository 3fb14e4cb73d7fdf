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
from core.text.spelling import did_you_mean, near_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.contract.spec import Spec
    from core.registry.manager import PluginManager

_ARGUMENTS = ("strategy", "accelerator", "precision")
_MOST_LISTED = 8


def written(kind: str, name: str) -> str:
    """A name as a user writes it: `strategy="core-acme:acme"`."""
    if kind in _ARGUMENTS:
        return f'{kind}="{name}"'
    return f'"{name}"'


def unknown(kind: str, name: str, manager: PluginManager) -> UnknownAliasError:
    """The error for a name that no provider offers."""
    provider, alias = split_name(name)
    near = _near(kind, alias, manager)
    sentences = [f"Unknown {kind} {name!r}."]
    if provider is not None:
        sentences.append(_about_provider(kind, provider, alias, manager))
    else:
        owner = known_aliases(kind).get(alias)
        if (kind, alias) in RESERVED_WORDS:
            sentences.append(f"The word {RESERVED_WORDS[kind, alias]}; it names no plugin.")
        elif owner is not None:
            sentences.append(f"It comes with {owner}. {_install(owner, manager)}")
        else:
            sentences.append(_did_you_mean(kind, near, manager))
        sentences.append(_available(kind, manager))
    return UnknownAliasError(" ".join(filter(None, sentences)), kind=kind, alias=name, near=near)


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
    provider = spec.provider
    advice = (
        f"Tell the authors of {provider}, or leave it out with CORE_DISABLE_PLUGINS={provider}; "
        f"`{list_command(spec.kind)} --all` shows what else is there."
    )
    if provider == IN_PROCESS:
        advice = "This program has registered it: mend it there."
    elif isinstance(cause, ModuleNotFoundError) and cause.name:
        advice = (
            f"Install what provides the module {cause.name!r}; see the documentation of {provider}."
        )
        module = spec.target.partition(":")[0]
        if f"{module}.".startswith(f"{cause.name}."):
            again = pip_install(provider, "--force-reinstall")
            advice = f"The installation is incomplete: try {again}."
    return PluginLoadError(
        f"The {spec.kind} {spec.alias!r} of {offer} can't be loaded from {spec.target!r}: "
        f"{detail}. {advice}",
        spec=spec,
    )


def missing_class(kind: str, name: str, distribution: str, manager: PluginManager) -> ImportError:
    """The error for the import from core of a well-known class whose distribution doesn't offer it
    here.
    """
    advice = _install(distribution, manager)
    return ImportError(f"The {kind} class {name} comes with {distribution}. {advice}", name=name)


def _reserved_word(kind: str, alias: str) -> str:
    return f"The word {alias!r} {RESERVED_WORDS[kind, alias]}; no {kind} can take it."


def _about_provider(kind: str, provider: str, alias: str, manager: PluginManager) -> str:
    offers = manager.offers(kind)
    offered = [offer.spec.alias for offer in offers if offer.spec.provider == provider]
    named = f"{provider} {manager.version(provider)}".rstrip()
    if offered:
        return f"{named} offers no {kind} {alias!r}, but: {', '.join(offered)}."
    if provider in manager.providers:
        return f"{named} offers no {kind}."
    if provider in known_plugins():
        return _install(provider, manager)
    others = [offer.spec.qualified_name for offer in offers if offer.spec.alias == alias]
    near = did_you_mean(f"{provider}:{alias}", others, count=3)
    return f"No installed package {provider!r} offers anything to core.{near}"


def _install(distribution: str, manager: PluginManager) -> str:
    for problem in manager.problems:
        if problem.source == distribution:
            return f"Part of {distribution} is there, but {problem.detail}."
    version = manager.version(distribution)
    if not version:
        return missing(distribution)
    upgrade = pip_install(distribution, "--upgrade")
    return f"The installed {distribution} {version} does not offer it: try {upgrade}."


def _near(kind: str, alias: str, manager: PluginManager) -> list[str]:
    """The aliases that may be meant: those of the name in another library or of the class, or else
    those that look like it.
    """
    targets = {
        known: target
        for kinds in known_plugins().values()
        for known, target in kinds.get(kind, {}).items()
    }
    targets |= {offer.spec.alias: offer.spec.target for offer in manager.offers(kind)}
    targets.pop(alias, None)
    meant = [name for name in OTHER_NAMES.get(alias, ()) if name in targets]
    written = _bare(alias, kind)
    spelt = [name for name in targets if _bare(name, kind) == written]
    classes = [
        name
        for name, target in targets.items()
        if _bare(target.rpartition(":")[2], kind) == written
    ]
    shortened = [name for name in targets if _bare(name.partition("_")[2], kind) == written]
    return meant or spelt or classes or shortened or near_names(alias, targets)


def _bare(name: str, kind: str) -> str:
    """A name as aliases and classes may have it in common: `"ddp"` for `"DDPStrategy"`, `"stage3"`
    for `"zero_3"`.
    """
    folded = name.casefold().replace("zero_stage", "stage").replace("zero", "stage")
    return folded.replace("_", "").removesuffix(kind.replace(" ", ""))


def _did_you_mean(kind: str, near: Sequence[str], manager: PluginManager) -> str:
    here = {offer.spec.alias for offer in manager.offers(kind)}
    forms = []
    for alias in near:
        form = repr(alias)
        if kind == "precision":
            form = form.replace("_", "-")
        if alias not in here:
            form += f" (`pip install {known_aliases(kind)[alias]}`, as README says)"
        forms.append(form)
    if not forms:
        return ""
    return f"Did you mean {' or '.join(forms)}?"


def _available(kind: str, manager: PluginManager) -> str:
    aliases = [offer.spec.alias for offer in manager.offers(kind) if offer.status is Status.OK]
    if not aliases:
        return "None is installed."
    if len(aliases) <= _MOST_LISTED:
        return f"Installed: {', '.join(aliases)}."
    return f"`{list_command(kind)}` shows the {len(aliases)} that are installed."


def list_command(kind: str) -> str:
    """The command that lists the plugins of a kind."""
    if kind in KINDS:
        return f"core list {KINDS[kind].plural}"
    return "core list"
