"""Classes of Lightning that have no counterpart: programs import them, and making one says what to
do instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from core import ConfigurationError

_PRECISION = (
    "Name it instead, and the strategy has its own: Trainer(strategy={!r}, precision='bf16-mixed')."
)
_LOOPS = (
    "core has loops of its own, which can't be replaced. Use hooks, or write the loop with Fabric."
)
_BAR = "core's bar has one look. Override get_metrics of RichProgressBar."
_ADVICE = {
    "BitsandbytesPrecision": "Put layers of bitsandbytes, such as Linear4bit, into the model "
    "yourself.",
    "CustomProgress": _BAR,
    "DeepSpeedPrecision": _PRECISION.format("deepspeed"),
    "FSDPPrecision": _PRECISION.format("fsdp"),
    "LitLogger": "Take one of `core list-loggers`.",
    "MetricsTextColumn": _BAR,
    "ServableModuleValidator": "Call the module's serve_step in a test of your own.",
    "SpikeDetection": "EarlyStopping(check_finite=True) ends a run whose loss isn't finite.",
    "SingleTPUStrategy": "Name it instead: Trainer(strategy='single_xla').",
    "TPUAccelerator": "Name it instead: Trainer(accelerator='xla').",
    "TransformerEnginePrecision": "Put layers of transformer_engine into the model yourself.",
    "XLAAccelerator": "Name it instead: Trainer(accelerator='xla').",
    "XLACheckpointIO": "Leave it out: core's checkpoints are the same on every device.",
    "XLAEnvironment": "Leave it out: core-xla finds the ranks itself.",
    "XLAPrecision": _PRECISION.format("xla"),
    "XLAProfiler": "Use torch_xla.debug.profiler.",
    "_AutomaticOptimization": _LOOPS,
    "_DataFetcher": _LOOPS,
    "_Loop": _LOOPS,
    "_ManualOptimization": _LOOPS,
    "_TrainingEpochLoop": _LOOPS,
}


@cache
def __getattr__(name: str) -> type:
    """The class of that name, whose making is refused."""
    if name not in _ADVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise ConfigurationError(f"{type(self).__name__}: {name} is not on core. {_ADVICE[name]}")

    doc = (
        "A class of Lightning's that isn't on core: programs import it, and not all of them make "
        "one."
    )
    return type(name, (), {"__init__": refuse, "__doc__": doc, "__module__": __name__})
