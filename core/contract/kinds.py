"""The kinds of plugin, as one table: what the registries, the hook specs and the command line are
made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin.

    Attributes:
        name: singular, as in error messages: `"checkpoint io"`.
        group: the entry-point group that offers it.
        base: `"module:attribute"` of the class that its targets subclass, or return. A command,
            which is called only by its user, is the instance itself.
    """

    name: str
    group: str
    base: str

    @property
    def hook(self) -> str:
        """The pluggy hook spec that yields its specs (`core.contract.hookspecs`)."""
        return self.group.replace(".", "_")

    @property
    def plural(self) -> str:
        """The group's last part with dashes: `"checkpoint-ios"`, as in
        `core list checkpoint-ios`.
        """
        return self.group.removeprefix("core.").replace("_", "-")


_TABLE = (
    Kind("strategy", "core.strategies", "core.contract.strategy:Strategy"),
    Kind("accelerator", "core.accelerators", "core.contract.accelerator:Accelerator"),
    Kind("precision", "core.precisions", "core.contract.precision:Precision"),
    Kind("checkpoint io", "core.checkpoint_ios", "core.contract.checkpoint_io:CheckpointIO"),
    Kind(
        "checkpoint reader",
        "core.checkpoint_readers",
        "core.contract.checkpoint_reader:CheckpointReader",
    ),
    Kind(
        "cluster environment",
        "core.cluster_environments",
        "core.contract.cluster_environment:ClusterEnvironment",
    ),
    Kind("launcher", "core.launchers", "core.contract.launcher:Launcher"),
    Kind("logger", "core.loggers", "core.contract.logger:Logger"),
    Kind("command", "core.commands", "click:Command"),
)

KINDS: MappingProxyType[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE})
"""Every kind, by its name."""

HOOKS_GROUP = "core.hooks"
"""Entry-point group of modules with event hooks. They are listed, and loaded only when the user
names them.
"""

EXPORTS_GROUP = "core.exports"
"""Entry-point group of names that a package adds to a public module of core:
`"core.callbacks.Acme"`, which `from core.callbacks import Acme` then finds. The target's attribute
has the same name."""

PRELUDES_GROUP = "core.preludes"
"""Entry-point group of preludes: functions without arguments that `core run` calls in each process
before the user's script, if the user names them."""
