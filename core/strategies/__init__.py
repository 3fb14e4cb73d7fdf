"""The strategies that need no package of their own; those of installed plugins can be imported from here too."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.registry import STRATEGY_REGISTRY
    from core.strategies.method_router import MethodRouter
    from core.strategies.parallel import ParallelStrategy
    from core.strategies.single_device import SingleDeviceStrategy

__all__ = ["STRATEGY_REGISTRY", "MethodRouter", "ParallelStrategy", "SingleDeviceStrategy", "Strategy"]

_MODULES = {
    "STRATEGY_REGISTRY": "core.registry",
    "MethodRouter": "core.strategies.method_router",
    "ParallelStrategy": "core.strategies.parallel",
    "SingleDeviceStrategy": "core.strategies.single_device",
    "Strategy": "core.contract",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="strategy", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
