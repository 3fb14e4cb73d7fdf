"""The strategies that need no package of their own; those of installed plugins can be imported from here too."""

from typing import Any

from core.contract import Strategy
from core.strategies.method_router import MethodRouter
from core.strategies.parallel import ParallelStrategy
from core.strategies.single_device import SingleDeviceStrategy

__all__ = ["STRATEGY_REGISTRY", "MethodRouter", "ParallelStrategy", "SingleDeviceStrategy", "Strategy"]


def __getattr__(name: str) -> Any:
    if name == "STRATEGY_REGISTRY":
        from core.registry import STRATEGY_REGISTRY

        return STRATEGY_REGISTRY
    from core.registry.lazy_exports import plugin_class

    return plugin_class("strategy", name, __name__)
