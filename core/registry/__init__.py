"""The registries, one for each kind of plugin. Installed plugins are found without importing them.

    from core.registry import STRATEGY_REGISTRY

    STRATEGY_REGISTRY.names()  # what can be used by its alias
    STRATEGY_REGISTRY.get("acme")  # the class; only now is the plugin imported
    STRATEGY_REGISTRY.register("mine", MyStrategy)  # for this process

The parts, in reading order: `discovery` reads the metadata, `manager` makes each provider a pluggy
plugin, `offers` gives every spec its status, `alias_choice` turns a name into one offer, `registry`
is what users and the core ask.
"""

from core.registry.builtins import CORE, CORE_DISTRIBUTIONS, CORE_VERSION
from core.registry.class_loading import base_class
from core.registry.discovery import (
    BY_NAME_ONLY,
    HOOKS,
    PRELUDES,
    Discovery,
    Problem,
    Provider,
    discover,
)
from core.registry.known_names import DEFAULT_PARALLEL_STRATEGY
from core.registry.known_plugins import known_aliases
from core.registry.listing import Row, listing
from core.registry.manager import PluginManager, plugin_manager
from core.registry.named_functions import load_export, load_hooks, load_prelude
from core.registry.names import IN_PROCESS, normalize_distribution, split_name
from core.registry.offers import Offer, Status, is_reserved
from core.registry.packages import import_library, require_package
from core.registry.registry import (
    ACCELERATOR_REGISTRY,
    CHECKPOINT_IO_REGISTRY,
    CHECKPOINT_READER_REGISTRY,
    CLUSTER_ENVIRONMENT_REGISTRY,
    COMMAND_REGISTRY,
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
    "BY_NAME_ONLY",
    "CHECKPOINT_IO_REGISTRY",
    "CHECKPOINT_READER_REGISTRY",
    "CLUSTER_ENVIRONMENT_REGISTRY",
    "COMMAND_REGISTRY",
    "CORE",
    "CORE_DISTRIBUTIONS",
    "CORE_VERSION",
    "DEFAULT_PARALLEL_STRATEGY",
    "HOOKS",
    "IN_PROCESS",
    "LAUNCHER_REGISTRY",
    "LOGGER_REGISTRY",
    "PRECISION_REGISTRY",
    "PRELUDES",
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
    "base_class",
    "discover",
    "import_library",
    "is_reserved",
    "known_aliases",
    "listing",
    "load_export",
    "load_hooks",
    "load_prelude",
    "normalize_distribution",
    "plugin_manager",
    "require_package",
    "split_name",
]
