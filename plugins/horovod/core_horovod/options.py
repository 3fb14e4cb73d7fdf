"""The options of an exchange, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Compression = Literal["none", "fp16"]
Op = Literal["Average", "Sum", "Adasum"]


@dataclass(frozen=True)
class HorovodOptions:
    """The settings of the exchange of gradients; `HorovodStrategy` says what each means."""

    compression: Compression = "none"
    backward_passes_per_step: int = 1
    op: Op = "Average"
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
