"""The strategies: those of installed packages, and stand-ins for the others, which say what to
install.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from core import Strategy
from core_lightning.decisions.stand_ins import refusing
from core_lightning.strategies.strategy_names import named

_OF_PACKAGES = {
    "DDPStrategy": "core-ddp",
    "DataParallelStrategy": "core-dp",
    "DeepSpeedStrategy": "core-deepspeed",
    "FSDPStrategy": "core-fsdp",
    "ModelParallelStrategy": "core-fsdp",
    "SingleDeviceStrategy": "core-training",
    "SingleDeviceXLAStrategy": "core-xla",
    "XLAFSDPStrategy": "core-xla",
    "XLAStrategy": "core-xla",
}


@cache
def __getattr__(name: str) -> type:
    """The class of an installed package; else one that says what to install when it is made."""
    if name not in _OF_PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return named(getattr(import_module("core.strategies"), name))  # type: ignore[no-any-return]
    except ImportError as error:
        advice = str(error)
    except AttributeError:
        package = _OF_PACKAGES[name]
        advice = f"{name} is not there. The strategies of {package} are: pip install {package}."
    return refusing(name, __name__, advice, Strategy)
