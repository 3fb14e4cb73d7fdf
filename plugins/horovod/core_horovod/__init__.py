"""Data parallelism for `core` on Horovod: `Trainer(strategy="horovod")`.

Names are imported when they are asked for: other strategies cost nothing of this package.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_horovod._version import __version__

if TYPE_CHECKING:
    from core_horovod.environment import HorovodEnvironment
    from core_horovod.launcher import HorovodLauncher
    from core_horovod.strategy import HorovodStrategy

__all__ = ["HorovodEnvironment", "HorovodLauncher", "HorovodStrategy", "__version__"]

__getattr__, __dir__ = lazy_exports(__name__)
