"""By hand: the design of 200 cells in which a planner is measured; writes cells.json.

    python benchmarks/plan_cells/design.py

A cell is a model, a strategy, a number of ranks and a variant of the run. Each pair of levels of
two of these factors is in some cell, but for those that core refuses or that mean nothing, which
stand below with their reasons. The order in which levels are assigned is drawn with a seed, so that
the same 200 cells come out again. It was written before the planner.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

SEED, NUM_CELLS = 41, 200
RECORD = Path(__file__).with_name("cells.json")
MODELS = (
    *("mlp", "cnn", "resnet", "unet", "gpt", "llama", "mixture", "vit", "lstm", "tied"),
    *(
        "lora",
        "batchnorm",
        "t5",
        "bert",
        "autoencoder",
        "gru",
        "encoder",
        "recommender",
        "convnext",
        "mixer",
    ),
)
WORLDS: dict[str, tuple[int, ...]] = {
    "single_device": (1,),
    "ddp": (1, 2, 4),
    "fsdp": (1, 2, 4),
    "model_parallel": (1, 2, 4),
    "deepspeed_stage_1": (1, 2, 4),
    "deepspeed_stage_2": (1, 2, 4),
    "deepspeed_stage_3": (1, 2, 4),
    "parallel:tensor=2": (2, 4),
    "parallel:pipeline=2": (2, 4),
    "parallel:context=2": (2, 4),
    "parallel:shard=2": (2, 4),
    "parallel:shard=2,tensor=2": (4,),
}
"""The numbers of ranks of each strategy. What a layout leaves over lies along `data`, so four ranks
of `shard=2` are `data=2,shard=2`."""
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "accumulation": {"accumulate_grad_batches": 2},
    "checkpointing": {"activation_checkpointing": "units"},
    "bf16": {"precision": "bf16-mixed"},
}
"""Arguments of the Trainer."""
SMALL_BUCKETS = "reduce_bucket_size=1000000,allgather_bucket_size=1000000"
"""Options with which cells of DeepSpeed are run once more. Its own buckets take 763 MiB each,
whatever the model: a plan that knows no more than these would be right within a few per cent."""

_PLANNED = {"mlp", "gpt", "llama", "mixture", "vit", "lstm", "tied", "bert", "encoder", "mixer"}
_SEQUENCES = {"gpt", "llama", "mixture", "tied", "lora", "bert", "encoder"}
_NO_PLAN = "no layer of it is in a plan to be cut"
_NO_SEQUENCE = "it isn't called on a sequence whose positions are computed apart from each other"
_NO_STAGES = {
    "unet": "its maps of the way down skip parts",
    "tied": "parts that share a weight stay in one stage, with all between them",
    "t5": "its decoder needs more than the block before",
    "recommender": "its repeated blocks are tables side by side",
}


class Cell(NamedTuple):
    """One run.

    Attributes:
        model, strategy, world, variant: the levels of the four factors.
    """

    model: str
    strategy: str
    world: int
    variant: str

    @property
    def name(self) -> str:
        """The levels in one line, by which results are kept."""
        return " ".join(map(str, self))

    @property
    def has_buckets(self) -> bool:
        """True if it is run with small buckets too."""
        return self.strategy.startswith("deepspeed")

    def with_small_buckets(self) -> Cell:
        """The same with small buckets, if it has any."""
        return (
            self._replace(strategy=f"{self.strategy}:{SMALL_BUCKETS}") if self.has_buckets else self
        )


def left_out(model: str, strategy: str) -> str | None:
    """Why a model isn't trained by a strategy; None if it is."""
    if ("tensor" in strategy or strategy == "model_parallel") and model not in _PLANNED:
        return _NO_PLAN
    if "context" in strategy and model not in _SEQUENCES:
        return _NO_SEQUENCE
    return _NO_STAGES.get(model) if "pipeline" in strategy else None


def refused(cell: Cell) -> str | None:
    """Why core refuses a cell whose pairs it takes; None if it doesn't."""
    if (
        cell.model in ("resnet", "batchnorm")
        and cell.strategy.startswith("deepspeed")
        and cell.variant == "bf16"
    ):
        return (
            "DeepSpeed leaves running statistics in float32 beside weights in 16 bits, which "
            "torch refuses"
        )
    return None


def candidates() -> list[Cell]:
    """All cells that can run."""
    every = (
        Cell(model, strategy, world, variant)
        for model in MODELS
        for strategy, worlds in WORLDS.items()
        if left_out(model, strategy) is None
        for world in worlds
        for variant in VARIANTS
    )
    return [cell for cell in every if refused(cell) is None]


def pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
    """The pairs of levels of a cell, each with the numbers of its factors."""
    return {(a, cell[a], b, cell[b]) for a, b in combinations(range(len(cell)), 2)}


def design() -> list[Cell]:
    """The cells: each time one of those that cover the most pairs that are left, and last some that
    cover none.
    """
    draw = random.Random(SEED)
    rest = candidates()
    draw.shuffle(rest)
    left = {pair for cell in rest for pair in pairs(cell)}
    chosen: list[Cell] = []
    while len(chosen) < NUM_CELLS and rest:
        used = {level: sum(level in cell for cell in chosen) for level in (1, 2, 4, *VARIANTS)}
        best = max(
            rest, key=lambda cell: (len(pairs(cell) & left), -used[cell.world] - used[cell.variant])
        )
        rest.remove(best)
        left -= pairs(best)
        chosen.append(best)
    if left:
        raise ValueError(
            f"{len(left)} pairs aren't covered by {NUM_CELLS} cells: {sorted(map(str, left))[:5]}"
        )
    return sorted(
        chosen,
        key=lambda cell: (cell.world, MODELS.index(cell.model), list(WORLDS).index(cell.strategy)),
    )


def main() -> int:
    """Write the cells, and what is left out."""
    cells = design()
    without = [
        {"model": model, "strategy": strategy, "reason": reason}
        for model in MODELS
        for strategy in WORLDS
        if (reason := left_out(model, strategy)) is not None
    ]
    every = [Cell(m, s, w, v) for m in MODELS for s in WORLDS for w in WORLDS[s] for v in VARIANTS]
    not_run = [
        {**cell._asdict(), "reason": reason}
        for cell in every
        if left_out(cell.model, cell.strategy) is None and (reason := refused(cell)) is not None
    ]
    lines = [f"  {json.dumps(cell._asdict())}" for cell in cells]
    left_lines = [f"  {json.dumps(each)}" for each in without]
    refused_lines = [f"  {json.dumps(each)}" for each in not_run]
    parts = {"cells": lines, "left_out": left_lines, "refused": refused_lines}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(each) + "\n]" for name, each in parts.items())
    RECORD.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    print(f"{len(cells)} cells, {len(without)} pairs left out, {len(not_run)} cells refused")
    return 0


def read() -> list[Cell]:
    """The cells that were written."""
    return [Cell(**each) for each in json.loads(RECORD.read_text(encoding="utf-8"))["cells"]]


if __name__ == "__main__":
    sys.exit(main())
