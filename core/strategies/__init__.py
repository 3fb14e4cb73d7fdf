"""The strategies that need no package of their own; those of installed plugins can be imported from
here too.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.contract import Strategy
    from core.registry import STRATEGY_REGISTRY, StrategyRegistry
    from core.strategies.method_router import MethodRouter
    from core.strategies.options import check_options, known_options, with_options_of
    from core.strategies.parallel import ParallelStrategy
    from core.strategies.refusals import (
        needs_whole_matrices,
        refuse_sparse_layers,
        refuse_unlike_modules,
    )
    from core.strategies.single_device import SingleDeviceStrategy
    from core.strategies.units import Units, class_name, find_units
    from core.strategies.untrained import FrozenParameters, LeftOutParameters
    from core.strategies.within import set_within

__all__ = [
    "STRATEGY_REGISTRY",
    "FrozenParameters",
    "LeftOutParameters",
    "MethodRouter",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
    "StrategyRegistry",
    "Units",
    "check_options",
    "class_name",
    "find_units",
    "known_options",
    "needs_whole_matrices",
    "refuse_sparse_layers",
    "refuse_unlike_modules",
    "set_within",
    "with_options_of",
]

__getattr__, __dir__ = lazy_exports(__name__, kind="strategy")
