"""The modes of torch while a stage runs: deterministic algorithms, cuDNN's search for fast ones,
anomalies.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core_training.settings.options import TrainerOptions

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def torch_modes(options: TrainerOptions) -> Iterator[None]:
    """All ranks. Set torch's modes by the Trainer's arguments, and restore the previous ones."""
    with ExitStack() as stack:
        benchmark = options.benchmark
        if options.deterministic:
            benchmark = False
            stack.callback(
                torch.use_deterministic_algorithms,
                torch.are_deterministic_algorithms_enabled(),
                warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            torch.use_deterministic_algorithms(True, warn_only=options.deterministic == "warn")
            # cuBLAS reads it when it is used first:
            # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
            os.environ.setdefault(_CUBLAS, ":4096:8")
        if benchmark is not None:
            stack.callback(
                setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark
            )
            torch.backends.cudnn.benchmark = benchmark
        if options.detect_anomaly:
            stack.enter_context(torch.autograd.set_detect_anomaly(True))
        yield


def check_modes(deterministic: object, benchmark: object) -> None:
    """Refuse what contradicts itself.

    Raises:
        ConfigurationError: with what can be.
    """
    if deterministic not in (None, True, False, "warn"):
        raise ConfigurationError(
            f"deterministic={deterministic!r}: expected True, False, or 'warn' to be warned of "
            "operations that aren't."
        )
    if deterministic and benchmark:
        raise ConfigurationError(
            f"deterministic={deterministic!r} and benchmark=True contradict each other: to choose "
            "algorithms by their times is to choose others in another run. Leave one of them out."
        )
