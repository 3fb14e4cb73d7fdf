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
        module: the user's, or the one in it that has the parts.
        name: of the module in the user's; empty for the user's own.
        stages: the parts of each stage.
        inner: the innermost module in it with all parts, which a step may call in its place.
        replay: runs the module's own forward for a stage; None for an `nn.Sequential`, which is its
            parts, each given the result of the one before.
    """

    module: nn.Module
    name: str
    stages: tuple[tuple[nn.Module, ...], ...]
    replay: Replay | None = None
    inner: nn.Module | None = None

    @property
    def called(self) -> list[nn.Module]:
        """The modules whose call is that of all parts."""
        return [self.module] if self.inner is None else [self.module, self.inner]
