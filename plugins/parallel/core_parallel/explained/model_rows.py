"""The rows about a model: its stages, the layers and experts that are cut, and what a rank
keeps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from core.cli import size_text
from core_parallel.explained.texts import Row, count_text, listed
from core_parallel.modules.plans import as_pattern
from core_parallel.tensor.vocabulary import ColwiseLogits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core_parallel.explained.placed_model import PlacedModel

_STYLES: dict[type, str] = {
    ColwiseParallel: "by columns",
    RowwiseParallel: "by rows",
    ColwiseLogits: "by words",
}


def rows(model: PlacedModel) -> Iterator[Row]:
    """The rows."""
    yield from _stages(model)
    yield from _cut_layers(model)
    for name, experts in {as_pattern(one.name): one for one in model.experts}.items():
        yield (
            "experts",
            f"{experts.count // model.sizes.expert} of {experts.count} a rank",
            f"in each of {name}",
        )
    for position in range(model.sizes.pipeline):
        whole = model.parameters_of(position)
        kept, size_bytes = (
            sum(map(model.kept, whole)),
            sum(model.kept(one) * one.element_size() for one in whole),
        )
        ranks = model.ranks_at(position)
        why = (
            f"its parts of parameters; gradients and optimizer state come to it{_others(ranks[1:])}"
        )
        yield f"rank {ranks[0]} keeps", f"{kept:,} parameters, {size_text(size_bytes)}", why


def _cut_layers(model: PlacedModel) -> Iterator[Row]:
    by_style: dict[str, Counter[str]] = defaultdict(Counter)
    for name, one in model.styles.items():
        by_style[_STYLES.get(type(one), type(one).__name__)][as_pattern(name)] += 1
    for style, patterns in by_style.items():
        names = listed(
            (
                f"{count} x {pattern}" if count > 1 else pattern
                for pattern, count in patterns.items()
            ),
            12,
        )
        yield "cut layers", f"{patterns.total()} {style}", f"tensor={model.sizes.tensor}: {names}"


def _others(ranks: Sequence[int]) -> str:
    return f"; likewise ranks {listed(map(str, ranks))}" if ranks else ""


def _stages(model: PlacedModel) -> Iterator[Row]:
    layout = model.layout
    if layout is None:
        return
    for stage in range(layout.num_stages):
        modules = layout.cut.stages[stage]
        own = dict.fromkeys(
            one for part in modules for one in part.parameters() if id(one) not in model.outside
        )
        ranks = model.ranks_at(layout.owner(stage))
        names = layout.names_of(stage)
        where = f"on rank{'s' * (len(ranks) > 1)} {listed(map(str, ranks))}"
        why = f"{_counted(len(names), 'part')}: {listed(names)}; {where}"
        yield f"stage {stage}", count_text(own), why
    if outside := layout.outside():
        by_id = {id(one): name for name, one in model.module.named_parameters()}
        shown = listed(by_id[id(one)] for one in outside)
        why = f"in no part, or in several; their gradients are added up over stages: {shown}"
        yield "every stage", count_text(outside), why


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
