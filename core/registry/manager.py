"""The pluggy manager: every provider is one plugin, named after its distribution."""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pluggy

from core._version import __version__
from core.contract import hookspecs
from core.contract.hookspecs import PROJECT
from core.contract.kinds import KINDS
from core.contract.spec import Spec, normalize_alias
from core.registry.builtins import BUILTINS, CORE
from core.registry.discovery import Discovery, Problem, Provider, describe, discover
from core.registry.names import IN_PROCESS, unfit_alias
from core.registry.offers import Offer, classify
from core.registry.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProviderPlugin:
    """An installed provider, or the built-ins. Nothing is imported to make it."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def specs(self, kind: str) -> list[Spec]:
        """The specs of one kind."""
        return [spec for spec in self.provider.specs if spec.kind == kind]

    def __dir__(self) -> list[str]:
        """Nothing: pluggy looks at every name for hooks, and there are none."""
        return []

    def __repr__(self) -> str:
        return f"<provider {self.provider.name} {self.provider.version}>"


class InProcessPlugin:
    """The provider of the running process: specs, and beside each the object itself."""

    def __init__(self) -> None:
        self.registered: dict[tuple[str, str], tuple[Spec, Any]] = {}

    def specs(self, kind: str) -> list[Spec]:
        """The specs of one kind, in the order of registration."""
        return [spec for spec, _ in self.registered.values() if spec.kind == kind]

    def __repr__(self) -> str:
        return f"<provider {IN_PROCESS}>"


class PluginManager(pluggy.PluginManager):
    """All providers, as pluggy plugins: the built-ins, the installed ones, and the running process.

    It is pluggy's own manager, so its methods do what their names say: `set_blocked("core-acme")`
    takes the provider out of every registry, `list_name_plugin()` shows the plugins and which are
    blocked, and `register(plugin, name="core-acme")` adds a plugin whose hooks are written in code.

    Args:
        environ: the mapping in which `CORE_PLUGINS` and `CORE_DISABLE_PLUGINS` are looked up.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(PROJECT)
        self._environ = environ
        self._selection = Selection()
        self._discovery = Discovery((), ())
        self._written_down: dict[str, Provider] = {}
        self._in_process = InProcessPlugin()
        self._specs: dict[str, list[Spec]] = {}
        self._offers: dict[tuple[str, str | None], tuple[Offer, ...]] = {}
        self._hook_problems: dict[str, list[Problem]] = {}
        # One hook a kind, for plugins that are written in code.
        self.add_hookspecs(hookspecs)
        self.register(self._in_process, IN_PROCESS)
        self._fill(refresh=False)

    # What pluggy does, with the offers kept in step.

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Add a plugin, whose hooks yield specs. Its name is the `provider` of those specs."""
        self._forget()
        return super().register(plugin, name)

    def unregister(self, plugin: object = None, name: str | None = None) -> Any:
        """Remove a plugin."""
        self._forget()
        return super().unregister(plugin, name)

    def set_blocked(self, name: str) -> None:
        """Remove a plugin, and keep it out; after pluggy's `unblock`, `refresh` brings it back."""
        super().set_blocked(name)
        self._forget()

    def _forget(self) -> None:
        self._specs.clear()
        self._offers.clear()

    # Who is there.

    @property
    def providers(self) -> dict[str, Provider]:
        """The built-ins and all installed providers by name, blocked ones too."""
        return dict(self._written_down)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of what was left out: damaged or hidden distributions, and hook
        implementations that raised.
        """
        for kind in KINDS:
            self.offers(kind)
        raised = [problem for problems in self._hook_problems.values() for problem in problems]
        return (*self._discovery.problems, *raised)

    def version(self, provider: str) -> str:
        """Version of an installed provider; empty for one without metadata."""
        known = self._written_down.get(provider)
        if known is None:
            return ""
        return known.version

    def refresh(self) -> None:
        """Read installed packages and environment variables again. Registrations stay."""
        self._fill(refresh=True)

    def _fill(self, *, refresh: bool) -> None:
        self._selection = Selection.from_environment(self._environ)
        for name in self._written_down:
            self.unregister(name=name)
        self._discovery = discover(refresh=refresh)
        self._written_down = {
            CORE: BUILTINS,
            **{provider.name: provider for provider in self._discovery.providers},
        }
        for name, provider in self._written_down.items():
            # by hand, or registered in code under this name
            if not (self.is_blocked(name) or self.has_plugin(name)):
                self.register(ProviderPlugin(provider), name)
        known = [spec for provider in self._written_down.values() for spec in provider.specs]
        known += [spec for spec, _ in self._in_process.registered.values()]
        for sentence in self._selection.unmatched(known):
            warnings.warn(sentence, stacklevel=2)

    # What they offer.

    def offers(self, kind: str, alias: str | None = None) -> tuple[Offer, ...]:
        """All offers of one kind, each with its status, by alias and provider.

        Args:
            kind: of the plugins.
            alias: only what is offered under it, folded. The requirements of all others aren't
                looked at then.
        """
        key = (kind, alias)
        if key not in self._offers:
            self._offers[key] = self._classify(kind, alias)
        return self._offers[key]

    def _classify(self, kind: str, alias: str | None) -> tuple[Offer, ...]:
        if kind not in self._specs:
            self._specs[kind] = self._collect(kind)
        let_in, blocked = [], []
        out_of_reach = [
            spec
            for name, provider in self._written_down.items()
            if self.is_blocked(name)
            for spec in provider.specs
            if spec.kind == kind
        ]
        if self.is_blocked(IN_PROCESS):
            out_of_reach += self._in_process.specs(kind)
        for spec in self._specs[kind] + out_of_reach:
            # Reading requirements takes time, so only the alias that was asked for is judged.
            if alias in (None, spec.alias):
                reason = self._selection.refusal(
                    spec, installed=spec.provider not in (CORE, IN_PROCESS)
                )
                if not reason and self.is_blocked(spec.provider):
                    reason = f"the plugin manager blocks {spec.provider}"
                if reason:
                    blocked.append((spec, reason))
                else:
                    let_in.append(spec)
        return classify(let_in, blocked, self._written_down, __version__)

    def _collect(self, kind: str) -> list[Spec]:
        """All specs of one kind. A hook that raises is left out, by name, and the others
        stand.
        """
        found: list[Spec] = []
        for _, plugin in self.list_name_plugin():
            if isinstance(plugin, ProviderPlugin | InProcessPlugin):
                found += plugin.specs(kind)
        if kind in KINDS:
            self._hook_problems[kind] = []
            hook = KINDS[kind].hook
            for implementation in getattr(self.hook, hook).get_hookimpls():
                name = implementation.plugin_name
                try:
                    offered: Any = implementation.function()
                    found += [_checked(spec, kind, name) for spec in offered]
                except KeyboardInterrupt:
                    raise
                except BaseException as cause:  # a hook can also call sys.exit()
                    detail = f"its hook {hook} raised {describe(cause)}"
                    self._hook_problems[kind].append(Problem(name, detail))
        return found

    # What the running process has registered.

    def registered(self, kind: str, alias: str) -> tuple[Spec, Any] | None:
        """Spec and object, or None."""
        return self._in_process.registered.get((kind, alias))

    def add(self, spec: Spec, target: object) -> None:
        """Register an object of the running process. `Registry.register` has checked that the alias
        is free.
        """
        self._in_process.registered[spec.kind, spec.alias] = (spec, target)
        self._forget()

    def discard(self, kind: str, alias: str) -> None:
        """Remove such a registration."""
        del self._in_process.registered[kind, alias]
        self._forget()


def _checked(spec: object, kind: str, plugin: str) -> Spec:
    if not isinstance(spec, Spec):
        raise TypeError(f"expected a Spec, got {spec!r}")
    if (spec.kind, spec.provider) != (kind, plugin):
        raise ValueError(
            f"expected kind {kind!r} and provider {plugin!r}, got {spec.kind!r} and "
            f"{spec.provider!r}"
        )
    reason = unfit_alias(spec.alias.strip())
    if reason:
        raise ValueError(f"the alias {spec.alias!r}: {reason}")
    return Spec(spec.kind, normalize_alias(spec.alias), spec.target, spec.provider, spec.summary)


_lock = threading.RLock()
_manager: PluginManager | None = None


def plugin_manager() -> PluginManager:
    """The manager of this process. It is made, and the installed packages are looked at, when it is
    first needed.
    """
    global _manager
    with _lock:
        if _manager is None:
            _manager = PluginManager()
        return _manager
