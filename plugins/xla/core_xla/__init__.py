"""TPUs and other devices of XLA for `core`: `Trainer(accelerator="xla")`.

Names are imported when they are asked for: training on another kind of device costs nothing of this
package.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_xla._version import __version__

if TYPE_CHECKING:
    from core_xla.accelerator import TPUAccelerator, XLAAccelerator
    from core_xla.environment import XLAEnvironment
    from core_xla.launcher import XLALauncher
    from core_xla.parallel import XLAStrategy
    from core_xla.presets import xla_debug
    from core_xla.single import SingleDeviceXLAStrategy, SingleTPUStrategy, SingleXLAStrategy
    from core_xla.spmd import XLAFSDPStrategy, XLASPMDStrategy

__all__ = [
    "SingleDeviceXLAStrategy",
    "SingleTPUStrategy",
    "SingleXLAStrategy",
    "TPUAccelerator",
    "XLAAccelerator",
    "XLAEnvironment",
    "XLAFSDPStrategy",
    "XLALauncher",
    "XLASPMDStrategy",
    "XLAStrategy",
    "__version__",
    "xla_debug",
]

__getattr__, __dir__ = lazy_exports(__name__)
