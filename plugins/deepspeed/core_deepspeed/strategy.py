"""DeepSpeed's engine behind one word: ZeRO cuts optimizer state, gradients and parameters over the ranks.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020; Ren et al.,
"ZeRO-Offload", ATC 2021; Rajbhandari et al., "ZeRO-Infinity", SC 2021.
"""

from __future__ import annotations

import dataclasses
import inspect
from difflib import get_close_matches
from typing import Any

from core import Capability, ConfigurationError
from core.strategies import ParallelStrategy
from core_deepspeed.options import Options

_START_METHODS = ("subprocess", "spawn", "fork", "forkserver")
_OPTIONS = frozenset(field.name for field in dataclasses.fields(Options))
_PARTS = frozenset(
    {
        *("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin"),
        *("process_group_backend", "timeout"),
    }
)


class DeepSpeedStrategy(ParallelStrategy):
    """Sharded data parallelism with DeepSpeed's ZeRO, on one node or several."""

    def __init__(self, stage: int = 2, *, start_method: str = "subprocess", **options: Any) -> None:
        """Options of DeepSpeed, and of every parallel strategy.

        Args:
            stage: of ZeRO. 1 cuts the optimizer's state over the ranks, 2 gradients too, 3 parameters too.
            start_method: who makes the processes if no cluster has: `"subprocess"` runs the script again, `"spawn"`,
                `"fork"` and `"forkserver"` call the function in new processes.
            options: of `core_deepspeed.Options`, and of `ParallelStrategy`: `process_group_backend`, `timeout`,
                `parallel_devices`, `cluster_environment`, `checkpoint_io`, `precision_plugin`, `accelerator`.

        Raises:
            ConfigurationError: an unknown option, or options that contradict each other.
        """
        if unknown := sorted(options.keys() - _OPTIONS - _PARTS):
            near = get_close_matches(unknown[0], _OPTIONS | _PARTS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"DeepSpeedStrategy has no option {unknown[0]!r}.{hint} Its options: "
                f"{', '.join(sorted(_OPTIONS | _PARTS | {'start_method'}))}."
            )
        if start_method not in _START_METHODS:
            raise ConfigurationError(
                f"start_method={start_method!r}: expected one of {', '.join(map(repr, _START_METHODS))}."
            )
        super().__init__(**{name: value for name, value in options.items() if name in _PARTS})
        self.launcher_name = start_method
        self.options = Options(stage=stage, **{name: options[name] for name in _OPTIONS & options.keys()})

    @property
    def capabilities(self) -> Capability:
        """Set-up of everything at once; state in shards."""
        return super().capabilities | Capability.JOINT_SETUP | Capability.SHARDED_STATE


def _signature() -> inspect.Signature:
    """With every option by its name, for whoever asks."""
    declared = inspect.signature(DeepSpeedStrategy.__init__)
    given = [parameter for parameter in declared.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    named = {parameter.name for parameter in given}
    options = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(Options).parameters.values()
        if parameter.name not in named
    ]
    parts = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in sorted(_PARTS)]
    return declared.replace(parameters=[*given, *options, *parts])


DeepSpeedStrategy.__init__.__signature__ = _signature()  # type: ignore[attr-defined]  # functions take attributes
