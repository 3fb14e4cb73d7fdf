"""The precisions that need no package of their own; those of installed plugins can be imported from
here too.
"""

from typing import TYPE_CHECKING

from core.contract.precision import NumberFormats, Precision
from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.precision.mixed import MixedPrecision
    from core.precision.uniform import UniformPrecision, kept_in_float32

__all__ = ["MixedPrecision", "NumberFormats", "Precision", "UniformPrecision", "kept_in_float32"]

__getattr__, __dir__ = lazy_exports(__name__, kind="precision")
