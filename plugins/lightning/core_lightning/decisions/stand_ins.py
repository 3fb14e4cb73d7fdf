"""Classes and functions of Lightning that have no counterpart: programs import them, and a call
says what to do instead.
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
_COLLECTIVE = "Call torch.distributed, or a Fabric's all_reduce, all_gather and broadcast."
_COMPILE = "Compile the module in place: module.compile()."
_HPARAMS = "Look at the module, its hparams and trainer.datamodule."
_SERVE = "Call the module's serve_step in a test of your own."
_SYNC = "Pass sync_batchnorm=True to the Trainer, or replace the layers in configure_model."
_THROUGHPUT = "core.callbacks.ThroughputMonitor measures it in a Trainer."
_BAR = "core's bar has one look. Override get_metrics of RichProgressBar."
_ADVICE = {
    "BitsandbytesPrecision": "Put layers of bitsandbytes, such as Linear4bit, into the model "
    "yourself.",
    "Collective": _COLLECTIVE,
    "CustomProgress": _BAR,
    "DeepSpeedPrecision": _PRECISION.format("deepspeed"),
    "FSDPPrecision": _PRECISION.format("fsdp"),
    "LayerSync": _SYNC,
    "LitLogger": "Take one of `core list loggers`.",
    "MetricsTextColumn": _BAR,
    "ServableModule": _SERVE,
    "ServableModuleValidator": _SERVE,
    "SingleDeviceCollective": _COLLECTIVE,
    "SpikeDetection": "EarlyStopping(check_finite=True) ends a run whose loss isn't finite.",
    "SingleTPUStrategy": "Name it instead: Trainer(strategy='single_xla').",
    "Throughput": _THROUGHPUT,
    "ThroughputMonitor": _THROUGHPUT,
    "TPUAccelerator": "Name it instead: Trainer(accelerator='xla').",
    "TorchCollective": _COLLECTIVE,
    "TorchSyncBatchNorm": _SYNC,
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
    "from_compiled": _COMPILE,
    "is_shared_filesystem": "Write a file on rank 0, call trainer.strategy.barrier(), and look for "
    "it on the others.",
    "lightning_getattr": _HPARAMS,
    "lightning_hasattr": _HPARAMS,
    "lightning_setattr": _HPARAMS,
    "save_hyperparameters": "Call the object's own save_hyperparameters.",
    "to_uncompiled": _COMPILE,
}


def refusing(
    name: str, module: str, text: str, base: type, error: type[Exception] = ConfigurationError
) -> type:
    """A class that programs can import from a module, and that raises an error where one of it is
    made.
    """

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise error(text)

    return type(name, (base,), {"__init__": refuse, "__doc__": text, "__module__": module})


@cache
def __getattr__(name: str) -> type:
    """The class of that name, whose making is refused."""
    if name not in _ADVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return refusing(name, __name__, f"{name} is not on core. {_ADVICE[name]}", object)
