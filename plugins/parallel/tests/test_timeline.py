"""The timeline of a batch: what each rank of a pipeline computes, and that nothing is left of the
recording.
"""

import json
from itertools import pairwise

import pytest
from language import on
from pipelines import Net, loader

from core import ConfigurationError
from core_parallel import Timeline
from core_parallel.profiling.recorder import Span


@pytest.mark.parametrize("schedule", [None, "1F1B", "ZBVZeroBubble"])
def test_every_stage_computes_each_microbatch_once(schedule, tmp_path):
    def _train(rank, folder, **options):
        timeline = Timeline(batch=1, dirpath=folder / str(rank.number))
        trainer = rank.trainer(max_steps=3, callbacks=timeline, limit_val_batches=0, **options)
        trainer.fit(Net(0.0), loader(24, 8))
        return (
            timeline.rows,
            timeline.duration_s,
            timeline.describe(),
            [
                [
                    name
                    for name in vars(owner)
                    if name in ("_forward", "_backward", "receive", "_loss")
                ]
                for chain, scheduled in trainer.strategy.pipelines
                for owner in (chain, chain.line, scheduled)
                if owner is not None
            ],
        )

    backend = on(in_process=True, pipeline=2, schedule=schedule, microbatches=4)
    (rows, duration_s, text, left), *_ = backend.run(_train, tmp_path)
    num_stages = 4 if schedule == "ZBVZeroBubble" else 2
    every = {(stage, index) for stage in range(num_stages) for index in range(4)}
    spans = [span for row in rows.values() for span in row]
    for kind in ("forward", "backward"):
        assert {(span.stage, span.microbatch) for span in spans if span.kind == kind} == every
    losses = {(span.stage, span.microbatch) for span in spans if span.kind == "loss"}
    assert losses == ({(num_stages - 1, index) for index in range(4)} if schedule else set())
    for row in rows.values():
        assert any(span.kind == "update" for span in row)
        assert all(a.end_s <= b.begin_s for a, b in pairwise(row)), "none overlap"
        assert row[-1].end_s <= duration_s
    assert not any(left)
    stages = ["stages 0 and 3", "stages 1 and 2"] if num_stages == 4 else ["stage 0", "stage 1"]
    assert [*rows] == [f"rank {rank}, {text}" for rank, text in enumerate(stages)]
    assert [line.partition("  ")[0] for line in text.splitlines()] == [*rows]
    [path] = tmp_path.rglob("timeline.json")
    assert path.parent.name == "0", "one rank writes it"
    written = json.loads(path.read_text())
    assert [row["name"] for row in written["rows"]] == [*rows]
    assert written["rows"][0]["spans"][0]["detail"] == "forward of microbatch 0 in stage 0"


def test_a_model_without_stages_has_no_timeline():
    def train_whole(rank):
        trainer = rank.trainer(max_steps=1, callbacks=Timeline(), limit_val_batches=0)
        with pytest.raises(ConfigurationError) as error:
            trainer.fit(Net(0.0), loader(24, 8))
        return str(error.value)

    found = on(in_process=True, data=2).run(train_whole)[0]
    assert found.startswith(
        "A timeline shows the stages of a pipeline, and MeshParallelStrategy has cut no model"
    )


def test_a_row_as_text():
    spans = [
        Span("forward", 0, 0, 0.0, 0.2),
        Span("forward", 0, 1, 0.2, 0.4),
        Span("backward", 0, 0, 0.6, 1.0),
    ]
    timeline = Timeline()
    timeline.rows = {"rank 0": spans, "rank 1": [Span("update", -1, -1, 0.9, 1.0)]}
    timeline.duration_s = 1.0
    assert timeline.describe(width=10) == "rank 0  0011..aaaa\nrank 1  .........="


def test_the_first_batch_is_refused():
    with pytest.raises(ConfigurationError, match=r"Timeline\(batch=0\): expected 1 or more"):
        Timeline(batch=0)
