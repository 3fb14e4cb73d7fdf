"""Bagua's algorithms for `core`:
`Trainer(strategy=BaguaStrategy(algorithm="bytegrad"), devices=4)`.
"""

from core_bagua._version import __version__
from core_bagua.qadam import QAdamOptimizer
from core_bagua.strategy import BaguaStrategy

__all__ = ["BaguaStrategy", "QAdamOptimizer", "__version__"]
