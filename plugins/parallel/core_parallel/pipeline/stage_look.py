"""A look at what a stage keeps of a call, which the user's step would find on one rank alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core_parallel.modules import graphs
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.modules.kept_tensors import MadeTensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core_parallel.stages.layout import Layout


class StageLook:
    """One call of a stage is looked at.

    Args:
        layout: of the model.
        stage: its number.
        known: of earlier looks, see `MadeTensors`.
    """

    def __init__(self, layout: Layout, stage: int, known: set[Any]) -> None:
        self._layout, self._stage, self._made = layout, stage, MadeTensors(known)
        self._before = graphs.kept(layout.modules_around())

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A context in which something of the stage runs."""
        with uncompiled(), self._made:
            yield

    def refuse_kept(self, results: Any) -> None:
        """The stage has run, with these results.

        Raises:
            ModuleError: a tensor is kept elsewhere than in them.
        """
        layout = self._layout
        graphs.refuse_kept(layout.named_modules_of(self._stage))
        graphs.refuse_kept(layout.modules_around(), self._before)
        self._made.refuse_kept(type(layout.module).__name__, layout.user.modules(), results)
