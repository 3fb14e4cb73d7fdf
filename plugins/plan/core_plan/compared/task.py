"""The task of one run of the program: written by `core compare`, read in each of its ranks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

VARIABLE = "CORE_COMPARE_TASK"
"""The environment variable with the path of the task, in all ranks."""


@dataclass
class Task:
    """One run of the program under one contender.

    Attributes:
        contender: as `Contender.parse` reads it.
        folder: for the files of this run; of this node.
        devices: processes a node.
        num_nodes: number of machines.
        steps: optimizer steps, after which the run ends.
        seed: of all generators, before the program begins.
        launched_at: `time.time()` of the launch.
        extras: count the bytes of one more step, and save a checkpoint.
        checkpoint: where; empty for none. All ranks reach it.
        global_batch_size: of a Trainer; None leaves it to the program.
        weight_steps: after these steps rank 0 records the weights, or compares them. Such a run
            isn't timed.
        reference: the folder of the recorded weights.
        writes_reference: whether this run records them.
        budget_bytes: at most so much is recorded.
        disturbed: change the first weights by a few units of rounding.
    """

    contender: str
    folder: str
    devices: int
    num_nodes: int
    steps: int
    seed: int
    launched_at: float
    extras: bool = False
    checkpoint: str = ""
    global_batch_size: int | None = None
    weight_steps: list[int] = field(default_factory=list)
    reference: str = ""
    writes_reference: bool = False
    budget_bytes: int = 1 << 30
    disturbed: bool = False

    @property
    def path(self) -> Path:
        """The file of this task."""
        return Path(self.folder, "task.json")

    def write(self) -> None:
        """Write the file that `read` reads."""
        self.path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls) -> Task | None:
        """The task of this process; None if it has none."""
        path = os.environ.get(VARIABLE)
        return cls(**json.loads(Path(path).read_text(encoding="utf-8"))) if path else None

    @property
    def marks(self) -> list[int]:
        """The steps after which the clock is read: the end of the warm-up, and then of at most 10
        blocks alike.
        """
        warm_up = num_warm_up(self.steps)
        timed = self.steps - warm_up
        size = max(1, timed // 10)
        return [warm_up + size * number for number in range(timed // size + 1)]


def num_warm_up(steps: int) -> int:
    """Steps of a run that aren't timed: the first fifth, at least one."""
    return max(1, -(-steps // 5))
