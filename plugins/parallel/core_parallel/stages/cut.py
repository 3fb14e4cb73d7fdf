"""The module that is cut into stages, and the parts of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from core_parallel.stages.replay import Replay


@dataclass(frozen=True, slots=True)
class Cut:
    """The module that is cut into stages.

    Attributes:
        called: the module, which is the user's or one in it; and perhaps another one in this that
            has all parts, which a step may call in its place.
        stages: the parts of each stage.
        replay: runs the module's own forward for a stage.
    """

    called: tuple[nn.Module, ...]
    stages: tuple[tuple[nn.Module, ...], ...]
    replay: Replay
