"""Chooses the parts beside the strategy: cluster environment, precision, checkpoint IO and
launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import (
    CheckpointIO,
    ClusterEnvironment,
    ConfigurationError,
    Launcher,
    Precision,
    normalize_alias,
)
from core.registry.builtins import SHORT_PRECISIONS
from core.resolve.candidates import (
    best,
    create,
    identify,
    passed,
    precedence,
    refuse_class,
    same_part,
    show,
    survey,
)
from core.resolve.decision import Choice, Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.contract import Strategy
    from core.resolve.plugins import Plugins

_DEFAULT_PRECISION = "32-true"
_DEFAULT_CHECKPOINT_IO = "distributed"
_IN_PLACE = "in_place"


def choose_cluster_environment(
    plugins: Plugins, given: Mapping[str, object]
) -> Choice[ClusterEnvironment]:
    """Decide the cluster environment: the one that the user passed, or the one of highest priority
    that is here.
    """
    kind = "cluster environment"
    wanted = _only(kind, plugins.get(kind), given.get("cluster_environment"))
    if wanted is not None:
        return _passed(kind, wanted)
    candidates = survey(kind)
    chosen = best(kind, candidates, "plugins=[{!r}]")
    return create(kind, chosen.offer, precedence(chosen, candidates))


def choose_precision(
    argument: object,
    strategy: Strategy,
    strategy_identity: Identity,
    plugins: Plugins,
    given: Mapping[str, object],
) -> Choice[Precision]:
    """Decide the number formats: the strategy's own of that name, or else the generic ones.

    Raises:
        ConfigurationError: two were named, or no provider offers it.
    """
    kind = "precision"
    written = argument
    if isinstance(argument, int) and not isinstance(argument, bool):
        written = str(argument)
    elif argument is not None and not isinstance(argument, str | Precision):
        refuse_class(kind, argument, Precision)
        raise ConfigurationError(
            f"precision={argument!r}: expected a name such as 'bf16-mixed', one of the numbers 16, "
            "32, 64, or an instance of core.Precision."
        )
    wanted = _only(kind, written, plugins.get(kind), given.get("precision_plugin"))
    if isinstance(wanted, Precision):
        return passed(kind, wanted)
    reason = "it is the default"
    if wanted is not None:
        reason = f"precision={argument or wanted!r} was asked for"
    name = canonical_precision(wanted or _DEFAULT_PRECISION)
    # A qualified name means that provider's, whatever the strategy has.
    if ":" not in name and (own := strategy.configure_precision(name)) is not None:
        identity = Identity(name, strategy_identity.provider, strategy_identity.version)
        return Choice(kind, own, identity, f"{reason}; {type(strategy).__name__} has its own")
    choice = create(kind, name, reason)
    # Under its canonical name: ranks that wrote "16" and "16-mixed" agree.
    return Choice(
        kind, choice.part, Identity(name, choice.identity.provider, choice.identity.version), reason
    )


def canonical_precision(name: str) -> str:
    """`"bf16-mixed"` for `"BF16_mixed"` and `"bf16"`. A qualified name, `"core-acme:fp8"`, stays as
    it is.
    """
    if ":" in name:
        return name
    folded = normalize_alias(name).replace("_", "-")
    return SHORT_PRECISIONS.get(folded, folded)


def choose_checkpoint_io(
    strategy: Strategy, plugins: Plugins, given: Mapping[str, object]
) -> Choice[CheckpointIO]:
    """Decide how checkpoints are stored: as the user says, or as the strategy does; else by
    default.
    """
    kind = "checkpoint io"
    own = plugins.get(kind)
    default: CheckpointIO | None = None
    if isinstance(own, CheckpointIO) and own.is_default:
        own, default = None, own
    wanted = _only(kind, own, given.get("checkpoint_io"))
    if wanted is not None:
        return _passed(kind, wanted)
    own = strategy.configure_checkpoint_io()
    if own is not None:
        return Choice(kind, own, identify(kind, own), f"{type(strategy).__name__} has its own")
    if default is not None:
        return Choice(kind, default, identify(kind, default), "it is the default")
    return create(kind, _DEFAULT_CHECKPOINT_IO, "it is the default")


def passed_launcher(
    environment: Choice[ClusterEnvironment], plugins: Plugins
) -> Choice[Launcher] | None:
    """The launcher that doesn't depend on the strategy: the user's, or none at all where the
    processes are there.
    """
    kind = "launcher"
    wanted = plugins.get(kind)
    if environment.part.creates_processes:
        reason = f"{environment.identity.alias} has made the processes"
        if wanted is not None:
            reason += f"; {show(wanted)} is not needed"
        return create(kind, _IN_PLACE, reason)
    if wanted is None:
        return None
    return _passed(kind, wanted)


def launchers_environment(
    launcher: Choice[Launcher],
    environment: Choice[ClusterEnvironment],
    plugins: Plugins,
    given: Mapping[str, object],
) -> Choice[ClusterEnvironment]:
    """The launcher's own environment, if it has one and neither the user nor a scheduler has
    decided; else the same.
    """
    kind = "cluster environment"
    named = plugins.get(kind) is not None or given.get("cluster_environment") is not None
    if named or environment.part.creates_processes:
        return environment
    own = launcher.part.configure_cluster_environment()
    if own is None:
        return environment
    return Choice(
        kind, own, identify(kind, own), f"the launcher {launcher.identity.alias} has its own"
    )


def _only(kind: str, *sources: Any) -> Any:
    """The one part among `sources` that was named; None if there is none."""
    named = [source for source in sources if source is not None]
    for other in named[1:]:
        one = named[0]
        if kind == "precision" and isinstance(one, str) | isinstance(other, str):
            names = {canonical_precision(getattr(part, "name", part)) for part in (one, other)}
            is_same = len(names) == 1
        else:
            is_same = same_part(kind, one, other)
        if not is_same:
            raise ConfigurationError(
                f"Two parts of the kind {kind!r} were passed: {show(one)} and {show(other)}. "
                "Keep one of them."
            )
    # An object says more than the name of its class.
    named.sort(key=lambda source: isinstance(source, str))
    return next(iter(named), None)


def _passed(kind: str, part: object) -> Choice[Any]:
    if isinstance(part, str):
        return create(kind, part, f"plugins=[{part!r}] was asked for")
    return passed(kind, part)
