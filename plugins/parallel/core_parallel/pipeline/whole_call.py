"""The call of a model whose batch is one microbatch: each rank runs the model's forward once, and
computes its own stage in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_unflatten

from core_parallel.microbatches.recorded_logs import RecordedLogs

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.forward_pass import Pass


class WholeCall:
    """The exchange of this rank in such a call, see `Replay.once`.

    Args:
        chain: of the model.
        made: the pass.
        piece: the arguments of the model.
        finish: gives the result of the last stage on all ranks, with a graph.
        until_end: closed when the last part has returned.
    """

    def __init__(
        self,
        chain: Chain,
        made: Pass,
        piece: Any,
        finish: Callable[[], Any],
        until_end: ExitStack,
    ) -> None:
        self._chain, self._made, self._piece, self._finish = chain, made, piece, finish
        (self._stage,) = chain.layout.own_stages
        self._inputs: tuple[list[Any], Any] = ([], None)
        self._until_end, self._look = until_end, chain.look(self._stage)
        self._results: list[Any] = []

    def begin(self) -> Any:
        """The first part is called: random numbers are those of the stage from here on."""
        seeds = self._until_end.enter_context(self._chain.draws.of_stages())
        seeds.begin(self._stage, 0)
        if self._stage == 0:
            return None
        self._inputs = inputs, form = self._chain.take(self._made, self._stage, 0, self._piece)
        return tree_unflatten(inputs, form)

    def compute(self, part: Callable[[], Any]) -> Any:
        """The result of a part of the stage."""
        with self._chain.context(), RecordedLogs().instead_of(self._chain.layout.user):
            if self._look is None:
                return part()
            with self._look.noting():
                result = part()
        self._results.append(result)
        return result

    def give(self, result: Any) -> None:
        """Hand on what the stage has computed."""
        if self._look is not None:
            self._look.refuse_kept(self._results)
            self._results.clear()
        self._chain.keep(self._made, self._stage, 0, self._inputs, result, self._made.wanting)
        self._chain.give(self._made, self._stage, 0, self._piece)

    def share(self) -> Any:
        """All ranks of the pipeline. The result of the last part."""
        return self._finish()

    def end(self) -> None:
        """The last part has returned: random numbers go on as before the first one."""
        self._until_end.close()
