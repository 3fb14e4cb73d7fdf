"""The rows about a model: its stages, the layers and experts that are cut, and what a rank
keeps.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from core_parallel.explained.texts import Row, count_text, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core_parallel.explained.placed_model import PlacedModel
    from core_parallel.stages.layout import Layout

_STYLES: dict[type, str] = {ColwiseParallel: "by columns", RowwiseParallel: "by rows"}


def rows(model: PlacedModel) -> Iterator[Row]:
    """The rows."""
    if model.layout is not None:
        yield from _stages(model, model.layout)
    by_style: dict[str, Counter[str]] = defaultdict(Counter)
    for name, one in model.styles.items():
        by_style[_STYLES.get(type(one), type(one).__name__)][_pattern(name)] += 1
    for style, patterns in by_style.items():
        names = listed((f"{count} x {pattern}" for pattern, count in patterns.items()), 12)
        yield "cut layers", f"{patterns.total()} {style}", f"tensor={model.sizes.tensor}: {names}"
    for name, count in {_pattern(one.name): one.count for one in model.experts}.items():
        yield "experts", f"{count // model.sizes.expert} of {count} a rank", f"in each of {name}"
    for position in range(model.sizes.pipeline):
        kept = count_text((one, model.kept(one)) for one in model.parameters_of(position))
        first, *others = map(str, model.ranks_at(position))
        why = "its parts of parameters; gradients and optimizer state come to it"
        if others:
            why += f"; likewise ranks {listed(others)}"
        yield f"rank {first} keeps", kept, why


def _stages(model: PlacedModel, layout: Layout) -> Iterator[Row]:
    for stage in range(layout.num_stages):
        modules = layout.cut.stages[stage]
        own = dict.fromkeys(
            one for part in modules for one in part.parameters() if id(one) not in model.outside
        )
        names, ranks = layout.names_of(stage), model.ranks_at(layout.owner(stage))
        why = f"{len(names)} parts: {listed(names)}; on ranks {listed(map(str, ranks))}"
        yield f"stage {stage}", count_text((one, one.numel()) for one in own), why
    outside = layout.outside()
    if outside:
        by_id = {id(one): name for name, one in model.module.named_parameters()}
        shown = listed(by_id[id(one)] for one in outside)
        why = f"in no part, or in several; their gradients are added up over stages: {shown}"
        yield "every stage", count_text((one, one.numel()) for one in outside), why


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", name)
