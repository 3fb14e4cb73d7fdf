"""The common parts of both programs of goodput.py: data, network, faults, and a record of each
update.

Needs torch alone, since it runs beside any library.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

NUM_RANKS, BATCH_SIZE, NUM_INPUTS = 2, 16, 16
GLOBAL_BATCH_SIZE = NUM_RANKS * BATCH_SIZE
FITS = BATCH_SIZE // 2
"""Samples of a batch that never run out of memory."""
ROOM_BYTES, TOO_LARGE = 2**33, 2**31
"""An allocation limit, and a number of floats that takes as much."""


@dataclass(frozen=True)
class Fault:
    """A fault: of this kind, in this step, on this rank."""

    kind: str
    step: int
    rank: int


@dataclass(frozen=True)
class Plan:
    """The steps of a run, and what happens to it.

    Attributes:
        num_steps: of the one epoch.
        step_s: seconds that a step sleeps, whatever the number of its batches.
        save_every: steps from one checkpoint to the next.
        hang_s: seconds after which a standstill ends.
        faults: of the run.
        left_out: a step whose samples the data doesn't have; None for all.
        is_on_page: use what the page "Runs that go on" has.
        folder: where the run leaves what it writes.
    """

    num_steps: int
    step_s: float
    save_every: int
    hang_s: float
    faults: tuple[Fault, ...]
    left_out: int | None
    is_on_page: bool
    folder: Path

    @classmethod
    def read(cls, path: str) -> Plan:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        faults = tuple(Fault(**each) for each in content.pop("faults"))
        return cls(**content, faults=faults, folder=Path(path).parent)

    @property
    def bad_sample(self) -> int | None:
        """The sample that isn't a number: of the fault's step, and of its rank in the order of
        either library.
        """
        for fault in self.faults:
            if fault.kind == "bad batch":
                return fault.step * GLOBAL_BATCH_SIZE + fault.rank * BATCH_SIZE + 6 + fault.rank
        return None


class Samples(Dataset):
    """Samples with their numbers."""

    def __init__(self, plan: Plan) -> None:
        number = plan.num_steps * GLOBAL_BATCH_SIZE
        generator = torch.Generator().manual_seed(0)
        draw = {"generator": generator, "dtype": torch.double}
        self.inputs = torch.randn(number, NUM_INPUTS, **draw)
        self.targets = self.inputs.sum(dim=1, keepdim=True).sin() + 0.5 * torch.randn(
            number, 1, **draw
        )
        if plan.bad_sample is not None:
            self.inputs[plan.bad_sample] = torch.nan
        first = number if plan.left_out is None else plan.left_out * GLOBAL_BATCH_SIZE
        self.numbers = [*range(first), *range(first + GLOBAL_BATCH_SIZE, number)]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        number = self.numbers[index]
        return number, self.inputs[number], self.targets[number]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(NUM_INPUTS, 32), nn.Tanh(), nn.Linear(32, 1)).double()


def loss_of(
    model: Callable[[Tensor], Tensor], batch: Any, plan: Plan, step: int, rank: int
) -> Tensor:
    """The loss of a batch, after the faults of this step, and as many seconds as its samples
    take.
    """
    numbers, inputs, targets = batch
    for fault in plan.faults:
        if fault.rank == rank:
            strike(fault, plan, step, len(numbers))
    time.sleep(plan.step_s * len(numbers) / BATCH_SIZE)
    return nn.functional.mse_loss(model(inputs), targets)


def strike(fault: Fault, plan: Plan, step: int, num_samples: int) -> None:
    """Cause a fault, if this is its time."""
    if fault.kind == "out of memory" and step >= fault.step and num_samples > FITS:
        allocate_too_much()
    if (
        fault.kind in ("kill", "hang")
        and step == fault.step
        and is_first(plan, f"{fault.kind} {step}")
    ):
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(3600)


def is_first(plan: Plan, name: str) -> bool:
    try:
        (plan.folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def allocate_too_much() -> None:
    """Fail as a machine does that has no more memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, hard))
    try:
        torch.ones(TOO_LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Record:
    """A line for each begin and each update of a rank, written at once: it outlives the process."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._path = plan.folder / f"record-{rank}.jsonl"
        self._numbers: list[int] = []

    def begin(self, step: int) -> None:
        self._write({"begins": step, "at_s": time.time()})

    def take(self, batch: Any) -> None:
        """A batch of the window has been trained."""
        self._numbers += batch[0].tolist()

    def end_window(self, step: int, model: nn.Module, *, is_made: bool) -> None:
        """The window is over.

        Args:
            step: updates so far.
            model: after it.
            is_made: its update was.
        """
        numbers, self._numbers = self._numbers, []
        if is_made:
            is_finite = all(bool(each.isfinite().all()) for each in model.parameters())
            self._write({"step": step, "samples": numbers, "is_finite": is_finite})

    def _write(self, content: dict[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def write_result(plan: Plan, step: int, model: nn.Module) -> None:
    """Rank 0, once the run has come to its end."""
    weights = torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()
    (plan.folder / "result.json").write_text(
        json.dumps({"step": step, "weights": weights}), encoding="utf-8"
    )
