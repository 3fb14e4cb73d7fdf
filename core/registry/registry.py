"""One registry a kind: what users and the core ask for plugins."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from core.contract.errors import ConfigurationError, CoreError
from core.contract.spec import Spec, normalize_alias
from core.registry import refusals
from core.registry.alias_choice import choose
from core.registry.class_loading import call_target, load_target, unfit
from core.registry.known_plugins import known_classes
from core.registry.manager import PluginManager, plugin_manager
from core.registry.names import IN_PROCESS, unfit_alias
from core.registry.offers import Offer, Status, is_reserved
from core.text import first_paragraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import click

    from core.contract.accelerator import Accelerator
    from core.contract.checkpoint_io import CheckpointIO
    from core.contract.checkpoint_reader import CheckpointReader
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.launcher import Launcher
    from core.contract.logger import Logger
    from core.contract.precision import Precision
    from core.contract.strategy import Strategy

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class Registry(Generic[T]):
    """All plugins of one kind: the built-ins, those of installed packages, and what this process
    registers.

    A name is an alias (`"acme"`), in which case doesn't matter and `-` equals `_`, or a qualified
    one (`"core-acme:acme"`). The installed packages are looked at when a registry is first used; a
    plugin is imported when `get` or `create` asks for it, and not before.

    Args:
        kind: name of the kind, a key of `core.contract.KINDS`.
        manager: returns the manager that knows all providers; by default the one that all
            registries of the process share.
    """

    def __init__(self, kind: str, manager: Callable[[], PluginManager] = plugin_manager) -> None:
        self.kind = kind
        self._manager = manager

    # Asking.

    def names(self) -> list[str]:
        """Every alias that can be used as it stands, sorted."""
        return [offer.spec.alias for offer in self.offers() if offer.status is Status.OK]

    def available_strategies(self) -> list[str]:
        """The same as `names`, by the name that users know."""
        return self.names()

    def offers(self) -> tuple[Offer, ...]:
        """All offers, each with its status: usable, blocked, in conflict and so on."""
        return self._manager().offers(self.kind)

    def providers_of(self, alias: str) -> tuple[Offer, ...]:
        """All offers of one alias."""
        return self._manager().offers(self.kind, normalize_alias(alias))

    def offer(self, name: str | Offer) -> Offer:
        """Choose the offer that a name stands for, without an import. An offer, which `get` and
        `create` take in the name's place too, is returned as it is.

        Raises:
            UnknownAliasError: no provider offers it; says what looks alike, and what to install.
            AliasConflictError: several do, or the alias belongs to another provider.
            BlockedPluginError: the environment keeps it out.
            IncompatiblePluginError: it was made for another release of core.
            PluginLoadError: its metadata doesn't say what to import.
        """
        if isinstance(name, Offer):
            return name
        with _shown_short():
            return choose(self.kind, name, self._manager())

    def spec(self, name: str) -> Spec:
        """The spec that a name stands for. Raises as `offer` does."""
        return self.offer(name).spec

    def __getitem__(self, name: str) -> Callable[..., T]:
        """The class or factory that a name stands for, as `get` returns it."""
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(choose(self.kind, name, self._manager()))
        except CoreError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __repr__(self) -> str:
        return f"<registry of {self.kind}: {', '.join(self)}>"

    # Loading.

    def get(self, name: str | Offer) -> Callable[..., T]:
        """Import a plugin.

        Args:
            name: alias, or `"provider:alias"`; or what `offer` has chosen.

        Returns:
            The class, or a factory that returns an instance.

        Raises:
            CoreError: as for `offer`; and PluginLoadError if it can't be imported or isn't what it
                says.
        """
        with _shown_short():
            plugin: Callable[..., T] = self._load(self.offer(name))
        return plugin

    def create(self, name: str | Offer, /, **options: Any) -> T:
        """Import a plugin and make an instance.

        Args:
            name: alias, or `"provider:alias"`; or what `offer` has chosen.
            options: go to the class or factory.

        Raises:
            ConfigurationError: it doesn't take these options.
            CoreError: as for `get`; and PluginLoadError if it raises, or returns something else.
        """
        with _shown_short():
            offer = self.offer(name)
            instance: T = call_target(offer, self._load(offer), options)
        return instance

    def class_named(self, name: str) -> Any:
        """Import a plugin by the name of its class. Behind
        `from core.strategies import SomeStrategy`.

        Raises:
            ImportError: it is a well-known class, whose distribution is to be installed.
            AttributeError: no provider offers such a class.
        """
        offers = [offer for offer in self.offers() if offer.spec.target.rpartition(":")[2] == name]
        if not offers:
            distribution = known_classes(self.kind).get(name)
            if distribution:
                raise refusals.missing_class(self.kind, name, distribution, self._manager())
            raise AttributeError(f"no installed package offers a {self.kind} class {name!r}")
        if len({offer.spec.provider for offer in offers}) > 1:
            raise refusals.conflict(offers)
        # Chosen by name, and not taken from the list, so that one that is blocked or incompatible
        # is refused.
        return self._load(self.offer(offers[0].spec.qualified_name))

    def _load(self, offer: Offer) -> Any:
        import logging

        spec = offer.spec
        logging.getLogger("core").debug(
            "%s %r is %s of %s", spec.kind, spec.alias, spec.target, offer
        )
        if spec.provider == IN_PROCESS:
            registered = self._manager().registered(spec.kind, spec.alias)
            if registered:
                return registered[1]
        return load_target(offer)

    # Registering in the running process.

    def register(
        self,
        name: str,
        target: Callable[..., T] | None = None,
        /,
        description: str | None = None,
        *,
        override: bool = False,
    ) -> Any:
        """Offer a class or factory under an alias, in this process. Without a target: a decorator.

        Args:
            name: the alias. Those of built-ins and of installed plugins can't be replaced.
            target: a subclass of the kind's base class, or a callable that returns an instance.
            description: one line for listings; by default the first paragraph of the docstring.
            override: replace an earlier registration of this process, which otherwise is an error.

        Raises:
            AliasConflictError: the alias is taken.
            ConfigurationError: it isn't a fit alias, or the target isn't a fit class or callable.
        """
        if target is None:

            def decorate(decorated: F) -> F:
                self.register(name, decorated, description, override=override)
                return decorated

            return decorate
        reason = unfit_alias(name.strip())
        if reason:
            raise ConfigurationError(f"{name!r} can't be the alias of a {self.kind}: {reason}.")
        alias, reason = normalize_alias(name), unfit(target, self.kind)
        if reason:
            raise ConfigurationError(f"The {self.kind} {alias!r} can't be registered: {reason}.")
        offers = [offer for offer in self.providers_of(alias) if offer.status is not Status.BLOCKED]
        installed = [offer for offer in offers if offer.spec.provider != IN_PROCESS]
        if installed or is_reserved(self.kind, alias):
            raise refusals.taken(self.kind, alias, installed)
        earlier = self._manager().registered(self.kind, alias)
        if earlier and not override:
            raise refusals.registered_already(earlier[0])
        summary = description or first_paragraph(getattr(target, "__doc__", None))
        inner: Any = getattr(target, "func", target)  # a functools.partial has no name of its own
        if not hasattr(inner, "__qualname__"):
            inner = type(inner)
        where = f"{inner.__module__}:{inner.__qualname__}"
        self._manager().add(Spec(self.kind, alias, where, IN_PROCESS, summary), target)
        return None

    def remove(self, name: str) -> None:
        """Remove a registration of this process.

        Raises:
            UnknownAliasError: no provider offers it.
            ConfigurationError: it is a built-in, or comes with an installed package.
        """
        manager, alias = self._manager(), normalize_alias(name.removeprefix(f"{IN_PROCESS}:"))
        if manager.registered(self.kind, alias):
            manager.discard(self.kind, alias)
            return
        offer = next(iter(self.providers_of(alias)), None)
        if offer is None:
            raise refusals.unknown(self.kind, name, manager)
        raise ConfigurationError(
            f"The {self.kind} {alias!r} comes with {offer}, and only what this process has "
            f"registered can be removed. CORE_DISABLE_PLUGINS={offer.spec.qualified_name} leaves "
            "it out."
        )


class StrategyRegistry(Registry["Strategy"]):
    """The registry of strategies; the arguments of `register` may be given by name."""

    def register(
        self,
        name: str,
        strategy_class: Callable[..., Strategy] | None = None,
        description: str | None = None,
        *,
        override: bool = False,
        **options: Any,
    ) -> Any:
        """Offer a strategy under an alias, in this process. See `Registry.register`.

        Args:
            name: as there.
            strategy_class: as there.
            description: as there.
            override: as there.
            options: the strategy is made with them, unless the user gives others: the alias is a
                preset.
        """
        if not options:
            return super().register(name, strategy_class, description, override=override)

        def add(target: F) -> F:
            preset = partial(target, **options)
            summary = description or first_paragraph(target.__doc__)
            super(StrategyRegistry, self).register(name, preset, summary, override=override)
            return target

        if strategy_class is None:
            return add
        add(strategy_class)
        return None


@contextmanager
def _shown_short() -> Iterator[None]:
    """If nothing catches an error that leaves this block, it is shown as where a Trainer or a
    Fabric is.
    """
    try:
        yield
    except CoreError as error:
        from core.display import install_for  # not loaded by those who list plugins

        install_for(error)
        raise


STRATEGY_REGISTRY = StrategyRegistry("strategy")
"""The strategies."""
ACCELERATOR_REGISTRY: Registry[Accelerator] = Registry("accelerator")
"""The accelerators."""
PRECISION_REGISTRY: Registry[Precision] = Registry("precision")
"""The precisions."""
CHECKPOINT_IO_REGISTRY: Registry[CheckpointIO] = Registry("checkpoint io")
"""The CheckpointIOs."""
CHECKPOINT_READER_REGISTRY: Registry[CheckpointReader] = Registry("checkpoint reader")
"""The readers of other programs' checkpoints."""
CLUSTER_ENVIRONMENT_REGISTRY: Registry[ClusterEnvironment] = Registry("cluster environment")
"""The cluster environments."""
LAUNCHER_REGISTRY: Registry[Launcher] = Registry("launcher")
"""The launchers."""
LOGGER_REGISTRY: Registry[Logger] = Registry("logger")
"""The loggers."""
COMMAND_REGISTRY: Registry[click.Command] = Registry("command")
"""The commands that packages add to `core`."""

_ALL: tuple[Registry[Any], ...] = (
    STRATEGY_REGISTRY,
    ACCELERATOR_REGISTRY,
    PRECISION_REGISTRY,
    CHECKPOINT_IO_REGISTRY,
    CHECKPOINT_READER_REGISTRY,
    CLUSTER_ENVIRONMENT_REGISTRY,
    LAUNCHER_REGISTRY,
    LOGGER_REGISTRY,
    COMMAND_REGISTRY,
)
REGISTRIES = MappingProxyType({registry.kind: registry for registry in _ALL})
"""Every registry, by its kind."""
