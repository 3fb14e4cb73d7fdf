"""Who offers what: the installed plugins, found without importing them, and one registry for each kind.

    from core.registry import STRATEGY_REGISTRY

    STRATEGY_REGISTRY.names()  # what can be used by its alias
    STRATEGY_REGISTRY.get("acme")  # the class; only now is the plugin imported
    STRATEGY_REGISTRY.register("mine", MyStrategy)  # for this process

The parts, in reading order: `discovery` reads the metadata, `manager` makes each provider a pluggy plugin, `offers`
gives every spec its status, `choice` turns a name into one offer, `registry` is the door.
"""

from core.registry.discovery import HOOKS, Discovery, Problem, Provider, discover
from core.registry.event_hooks import load_hooks
from core.registry.known_aliases import DEFAULT_PARALLEL_STRATEGY
from core.registry.listing import Row, listing
from core.registry.manager import PluginManager, plugin_manager
from core.registry.offers import Offer, Status
from core.registry.registry import (
    ACCELERATOR_REGISTRY,
    CHECKPOINT_IO_REGISTRY,
    CLUSTER_ENVIRONMENT_REGISTRY,
    LAUNCHER_REGISTRY,
    LOGGER_REGISTRY,
    PRECISION_REGISTRY,
    REGISTRIES,
    STRATEGY_REGISTRY,
    Registry,
    StrategyRegistry,
)

__all__ = [
    "ACCELERATOR_REGISTRY",
    "CHECKPOINT_IO_REGISTRY",
    "CLUSTER_ENVIRONMENT_REGISTRY",
    "DEFAULT_PARALLEL_STRATEGY",
    "HOOKS",
    "LAUNCHER_REGISTRY",
    "LOGGER_REGISTRY",
    "PRECISION_REGISTRY",
    "REGISTRIES",
    "STRATEGY_REGISTRY",
    "Discovery",
    "Offer",
    "PluginManager",
    "Problem",
    "Provider",
    "Registry",
    "Row",
    "Status",
    "StrategyRegistry",
    "discover",
    "listing",
    "load_hooks",
    "plugin_manager",
]
