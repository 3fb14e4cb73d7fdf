"""The precisions that need no package of their own; those of installed plugins can be imported from here too."""

from typing import TYPE_CHECKING, Any

from core.contract.precision import NumberFormats, Precision

if TYPE_CHECKING:
    from core.precision.mixed import MixedPrecision
    from core.precision.uniform import UniformPrecision

__all__ = ["MixedPrecision", "NumberFormats", "Precision", "UniformPrecision"]

_MODULES = {
    "MixedPrecision": "core.precision.mixed",
    "UniformPrecision": "core.precision.uniform",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="precision", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
