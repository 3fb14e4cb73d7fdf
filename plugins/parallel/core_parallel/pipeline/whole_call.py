"""The call of a model whose batch is one microbatch: each rank runs the model's forward once, and
computes its own stage in it.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from core_parallel.microbatches import pieces
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.pipeline.forward_pass import Pass, replaced, wanting
from core_parallel.pipeline.result_graph import Given

if TYPE_CHECKING:
    from core_parallel.pipeline.chain import Chain


def call(chain: Chain, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All ranks of the pipeline, each of which has one stage. The result of the model."""
    (stage,) = chain.layout.own_stages
    begin, end = chain.layout.places_of(stage)
    replay, look = chain.layout.cut.replay, chain.look(stage)
    made = Pass([pieces.num_samples((args, kwargs))], is_at_once=True)
    asked = wanting((args, kwargs))
    if asked:
        made.wanting = made.leaves = [*Given.apply(made, *asked)]  # type: ignore[no-untyped-call]  # torch's
        for one in made.leaves:
            one.retain_grad()
        args, kwargs = replaced((args, kwargs), asked, made.leaves)
    arrived: Any = None
    results: list[Any] = []
    shared: list[Any] = []
    with ExitStack() as until_end:

        def compute(index: int, given: Any) -> Any:
            looked_at: Any = nullcontext()
            if look is not None:
                looked_at = look.noting()
            with chain.context(), RecordedLogs().instead_of(chain.layout.user), looked_at:
                result = replay.computed(index, begin, given)
            if index == end - 1:
                if look is not None:
                    look.refuse_kept([*results, result])
                results.clear()
                chain.keep(made, stage, 0, arrived, result)
                chain.give(made, stage, 0, (args, kwargs))
            elif look is not None:
                results.append(result)
            return result

        def answer(index: int, given: Any) -> Any:
            nonlocal arrived
            if index == 0:
                # random numbers are those of the stage, until the last part has returned
                until_end.enter_context(chain.draws.of_stages()).begin(stage, 0)
                if stage:
                    arrived = chain.take(made, stage, 0, (args, kwargs))
            if index == begin - 1:
                return arrived
            result = None
            if begin <= index < end:
                result = compute(index, given)
            is_last = index == replay.num_parts - 1
            if (index >= end or is_last) and not shared:
                shared.append(chain.answer_of(made))
            if is_last:
                until_end.close()
                return shared[0]
            if begin <= index < end - 1:
                return result
            return replay.hollow(index, given)

        return replay.to_its_end(answer, args, kwargs)
