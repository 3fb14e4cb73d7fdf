"""The rows about a model: its stages, and the layers and experts that are cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from core_parallel.explained.texts import Row, count_text, listed
from core_parallel.mesh.device_mesh import groups_along
from core_parallel.mesh.sizes import AXES
from core_parallel.modules.plans import as_pattern
from core_parallel.tensor.vocabulary import ColwiseLogits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed.tensor.parallel import ParallelStyle

    from core_parallel.experts.expert_modules import ExpertModule
    from core_parallel.mesh.sizes import Sizes
    from core_parallel.stages.layout import Layout

_STYLES: dict[type, str] = {
    ColwiseParallel: "by columns",
    RowwiseParallel: "by rows",
    ColwiseLogits: "by words",
}


def rows(
    sizes: Sizes,
    layout: Layout | None,
    styles: Mapping[str, ParallelStyle],
    experts: Sequence[ExpertModule],
) -> Iterator[Row]:
    """The rows.

    Args:
        sizes: of the mesh.
        layout: the stages; None without a pipeline.
        styles: of the layers that are cut over `tensor`, by name.
        experts: that are distributed over `expert`.
    """
    if layout is not None:
        yield from _stages(layout, groups_along(sizes.shape, [AXES.index("pipeline")]))
    by_style: dict[str, Counter[str]] = defaultdict(Counter)
    for name, one in styles.items():
        by_style[_STYLES.get(type(one), type(one).__name__)][as_pattern(name)] += 1
    for style, patterns in by_style.items():
        names = listed((f"{count} x {pattern}" for pattern, count in patterns.items()), 12)
        yield "cut layers", f"{patterns.total()} {style}", f"tensor={sizes.tensor}: {names}"
    for name, count in {as_pattern(one.name): one.count for one in experts}.items():
        yield "experts", f"{count // sizes.expert} of {count} a rank", f"in each of {name}"


def _stages(layout: Layout, pipelines: Sequence[Sequence[int]]) -> Iterator[Row]:
    names_of = {one: name for name, one in layout.user.named_parameters()}
    outside = set(layout.outside())
    for stage in range(layout.num_stages):
        modules = layout.cut.stages[stage]
        own = {one for part in modules for one in part.parameters()} - outside
        names, position = layout.names_of(stage), layout.owner(stage)
        ranks = listed(str(ranks[position]) for ranks in pipelines)
        why = f"{len(names)} parts: {listed(names)}; on ranks {ranks}"
        yield f"stage {stage}", count_text(own), why
    if outside:
        shown = listed(names_of[one] for one in names_of if one in outside)
        why = f"in no part, or in several; their gradients are added up over stages: {shown}"
        yield "every stage", count_text(outside), why
