"""Logging from inside a compiled step. Imported only while torch traces one, since it loads torch's
compiler.
"""

from __future__ import annotations

from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def record(module: Any, *arguments: Any) -> None:
    """`MetricCollector.log` with these arguments, between two graphs."""
    module._trainer.run.metrics.log(*arguments)
