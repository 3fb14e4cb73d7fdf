"""A timeline of one training step: what each rank of a pipeline does when."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core import Callback, ConfigurationError
from core_parallel.profiling.recorder import Span, SpanRecorder, check, recording

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_LETTERS = {
    "forward": "0123456789",
    "backward": "abcdefghij",
    "weights": "ABCDEFGHIJ",
    "loss": "!",
    "update": "=",
}


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One rank's spans in a step.

    Attributes:
        name: such as "rank 0, stages 0 and 3".
        spans: in the order of time.
    """

    name: str
    spans: Sequence[Span]


class Timeline(Callback):
    """Records one training batch, and writes `timeline.json` into the run's folder, which
    `core report` draws.

        Trainer(strategy=MeshParallelStrategy(pipeline=2), callbacks=Timeline())

    A batch that isn't recorded is trained as without it.

    Args:
        batch: number of the recorded batch in the fit, from 0. In the first ones schedules are set
            up.
        dirpath: folder of the file; by default that of the run, `trainer.log_dir`.

    Attributes:
        rows: on all ranks, what every rank did; empty before the batch.
        duration_s: of the batch on the slowest rank, with hooks and the optimizer's step.
    """

    def __init__(self, batch: int = 2, dirpath: str | os.PathLike[str] | None = None) -> None:
        if batch < 1:
            raise ConfigurationError(
                f"Timeline(batch={batch}): expected 1 or more, since the first sets schedules up."
            )
        self._batch, self._dirpath = batch, dirpath
        self._open = ExitStack()
        self._recorder: SpanRecorder | None = None
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """No batch was seen yet."""
        self._num_seen = 0
        self.rows: Sequence[TimelineRow] = ()
        self.duration_s = 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """All ranks. Refuse a strategy without stages.

        Raises:
            ConfigurationError: there is nothing to record.
        """
        check(trainer.strategy)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """All ranks. Begin to record, if it is the batch."""
        if self._num_seen == self._batch:
            self._recorder = self._open.enter_context(recording(trainer.strategy))
        self._num_seen += 1

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks. Bring the recorded spans together, and write them on rank 0."""
        if self._recorder is None:
            return
        self._close()
        own = self._recorder.now_s, _row(dist.get_rank(), self._recorder.spans)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, own)
        self.duration_s, self.rows = (
            max(one for one, _ in gathered),
            tuple(row for _, row in gathered),
        )
        self._recorder = None
        if trainer.is_global_zero:
            self._write(Path(self._dirpath or trainer.log_dir))

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """All ranks. Record no longer."""
        self._close()
        self._recorder = None

    def _close(self) -> None:
        self._open.close()

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {"name": row.name, "spans": [_as_json(span) for span in row.spans]} for row in self.rows
        ]
        content = {
            "title": f"batch {self._batch} of the fit",
            "duration_s": self.duration_s,
            "rows": rows,
        }
        (folder / "timeline.json").write_text(json.dumps(content), encoding="utf-8")

    def describe(self, width: int = 100) -> str:
        """The rows as text, a sign a moment: 0 and a are forward and backward of the first
        microbatch.
        """
        return as_text(self.rows, self.duration_s, width)


def as_text(rows: Sequence[TimelineRow], duration_s: float, width: int = 100) -> str:
    """Rows as text.

    Args:
        rows: of all ranks.
        duration_s: that the width stands for.
        width: signs of a row. 0 to 9 are forward of a microbatch, a to j its backward, A to J its
            weights where a schedule computes these apart; ! is a loss, = the update, a point is
            waiting.
    """
    lines = []
    for row in rows:
        signs = ["."] * width
        for span in row.spans:
            letters = _LETTERS[span.kind]
            first, end = (
                min(width, round(width * moment / duration_s))
                for moment in (span.begin_s, span.end_s)
            )
            signs[first:end] = letters[span.microbatch % len(letters)] * (end - first)
        lines.append(f"{row.name}  {''.join(signs)}")
    return "\n".join(lines)


def bubble(rows: Sequence[TimelineRow], duration_s: float) -> float:
    """The share of a step in which ranks compute nothing."""
    computing = sum(span.end_s - span.begin_s for row in rows for span in row.spans)
    return 1 - computing / (duration_s * len(rows))


def _row(rank: int, spans: Sequence[Span]) -> TimelineRow:
    stages = sorted({span.stage for span in spans if span.stage >= 0})
    return TimelineRow(
        f"rank {rank}, stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}",
        tuple(spans),
    )


def _as_json(span: Span) -> dict[str, Any]:
    is_update = span.stage < 0
    detail = (
        span.kind
        if is_update
        else f"{span.kind} of microbatch {span.microbatch} in stage {span.stage}"
    )
    label = "" if is_update else str(span.microbatch)
    return {
        "kind": span.kind,
        "label": label,
        "detail": detail,
        "begin_s": span.begin_s,
        "end_s": span.end_s,
    }
