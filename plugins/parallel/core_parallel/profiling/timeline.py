"""A timeline of one training step: what each rank of a pipeline does when."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from core import Callback, ConfigurationError
from core_parallel.profiling.recorder import Span, SpanRecorder, recording

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

_LETTERS = {
    "forward": "0123456789",
    "backward": "abcdefghij",
    "weights": "ABCDEFGHIJ",
    "loss": "!",
    "update": "=",
}


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
        rows: on all ranks, the spans of every rank in the order of time, by names such as
            "rank 0, stages 0 and 3"; empty before the batch.
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
        self.rows: Mapping[str, Sequence[Span]] = {}
        self.duration_s = 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """All ranks. Refuse a strategy without stages.

        Raises:
            ConfigurationError: there is nothing to record.
        """
        if not getattr(trainer.strategy, "pipelines", None):
            raise ConfigurationError(
                "A timeline shows the stages of a pipeline, and "
                f"{type(trainer.strategy).__name__} has cut no model into stages. Train with "
                "MeshParallelStrategy(pipeline=2) or more, or leave it out."
            )

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
        own = self._recorder.now_s, _name(self._recorder.spans), self._recorder.spans
        self._close()
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, own)
        self.duration_s = max(duration_s for duration_s, _, _ in gathered)
        self.rows = {name: spans for _, name, spans in gathered}
        if trainer.is_global_zero:
            self._write(Path(self._dirpath or trainer.log_dir))

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """All ranks. Record no longer."""
        self._close()

    def _close(self) -> None:
        self._open.close()
        self._recorder = None

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "title": f"batch {self._batch} of the fit",
            "duration_s": self.duration_s,
            "rows": [
                {"name": name, "spans": list(map(_as_json, spans))}
                for name, spans in self.rows.items()
            ],
        }
        (folder / "timeline.json").write_text(json.dumps(content), encoding="utf-8")

    def describe(self, width: int = 100) -> str:
        """The rows as text.

        Args:
            width: signs of a row. 0 to 9 are forward of a microbatch, a to j its backward, A to J
                its weights where a schedule computes these apart; ! is a loss, = the update, a
                point is waiting.
        """
        lines = []
        for name, spans in self.rows.items():
            signs = ["."] * width
            for span in spans:
                letters = _LETTERS[span.kind]
                first = round(width * span.begin_s / self.duration_s)
                end = min(width, round(width * span.end_s / self.duration_s))
                signs[first:end] = letters[span.microbatch % len(letters)] * (end - first)
            lines.append(f"{name}  {''.join(signs)}")
        return "\n".join(lines)


def _name(spans: Sequence[Span]) -> str:
    stages = sorted({span.stage for span in spans if span.stage >= 0})
    numbers = " and ".join(map(str, stages))
    return f"rank {dist.get_rank()}, stage{'s' * (len(stages) > 1)} {numbers}"


def _as_json(span: Span) -> dict[str, Any]:
    found = asdict(span)
    if span.stage >= 0:
        detail = f"{span.kind} of microbatch {span.microbatch} in stage {span.stage}"
        found |= {"label": str(span.microbatch), "detail": detail}
    return found
