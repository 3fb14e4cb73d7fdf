"""Training with peers that come and go for `core`, on hivemind: `Trainer(strategy="hivemind")`.

Names are imported when they are asked for: other strategies cost nothing of this package.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_hivemind._version import __version__

if TYPE_CHECKING:
    from core_hivemind.errors import PeersError
    from core_hivemind.options import AveragingOptions
    from core_hivemind.strategy import HivemindStrategy

__all__ = ["AveragingOptions", "HivemindStrategy", "PeersError", "__version__"]

__getattr__, __dir__ = lazy_exports(__name__)
