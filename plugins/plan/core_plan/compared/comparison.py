"""The program under each contender in turns, several times, and once more for the numbers."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_plan.compared import numbers
from core_plan.compared.figures import Result, mean_losses
from core_plan.compared.run import RunFailed, run
from core_plan.compared.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core_plan.contender import Contender


@dataclass
class Settings:
    """How to compare.

    Attributes:
        program: the script and its arguments, as `core run` takes them.
        run_options: of `core run`.
        devices: processes a node.
        num_nodes: number of machines.
        steps: of each run.
        rounds: number of timed runs of each contender.
        seed: before the program begins.
        tolerance: of losses, as a part of the largest.
        weighs: whether weights are compared.
        saves: whether a checkpoint is measured.
        scratch: for temporary files; empty for the system's folder. All nodes reach it.
        global_batch_size: of a Trainer; None leaves it to the program.
        timeout_s: of a run; None for no limit.
    """

    program: Sequence[str]
    run_options: Sequence[str]
    devices: int
    num_nodes: int = 1
    steps: int = 50
    rounds: int = 2
    seed: int = 0
    tolerance: float = 1e-3
    weighs: bool = True
    saves: bool = True
    scratch: str = ""
    global_batch_size: int | None = None
    timeout_s: float | None = None


@dataclass
class Comparison:
    """The contenders' results as they come.

    Attributes:
        settings: how they are compared.
        results: a row a contender, in the user's order.
        interrupted: Ctrl-C has ended it.
    """

    settings: Settings
    results: list[Result]
    interrupted: bool = False
    _runs: int = field(default=0, repr=False)

    @classmethod
    def of(cls, contenders: Sequence[Contender], settings: Settings) -> Comparison:
        """A comparison that hasn't begun."""
        return cls(settings, [Result(str(contender)) for contender in contenders])

    @property
    def reference(self) -> Result | None:
        """The first contender that could be measured; the others' numbers are compared with its
        own.
        """
        return next((result for result in self.results if result.status == "measured"), None)

    def run(self, report: Callable[[str], None]) -> None:
        """Run all; where Ctrl-C comes, what there is stays.

        Args:
            report: called with each line of progress.
        """
        folder = Path(tempfile.mkdtemp(prefix="core-compare-", dir=self.settings.scratch or None))
        try:
            for number in range(self.settings.rounds):
                self._run_round(number, folder, report)
            self._compare_numbers(folder, report)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._judge({}, {})
            shutil.rmtree(folder, ignore_errors=True)

    def _run_round(self, number: int, folder: Path, report: Callable[[str], None]) -> None:
        """Time each contender once; in odd rounds the last comes first, so that no one always
        follows the same.
        """
        results = self.results if number % 2 == 0 else reversed(self.results)
        for result in results:
            if result.status == "failed":
                continue
            report(f"Round {number + 1} of {self.settings.rounds}: {result.strategy}")
            task = self._task(result, folder, extras=number == 0)
            if task.extras and self._saves:
                task.checkpoint = str(Path(task.folder, "checkpoint"))
            try:
                result.add_round(self._run(task))
            except RunFailed as failure:
                result.status, result.reason, result.log = "failed", str(failure), failure.log

    @property
    def _saves(self) -> bool:
        return self.settings.saves and (self.settings.num_nodes == 1 or bool(self.settings.scratch))

    def _compare_numbers(self, folder: Path, report: Callable[[str], None]) -> None:
        """Run the reference and all that should equal it once more, untimed, and compare their
        weights step by step.
        """
        reference = self.reference
        compared = [
            result
            for result in self.results
            if reference is not None
            and result is not reference
            and result.status == "measured"
            and not numbers.why_not_comparable(result, reference)
        ]
        if reference is None or not compared or not self.settings.weighs:
            return
        parted = [
            numbers.first_parted_loss(result.losses, reference.losses, self.settings.tolerance)
            for result in compared
        ]
        steps = numbers.steps_to_weigh(
            parted, min(result.num_steps for result in (reference, *compared))
        )
        kept = folder / "reference"
        kept.mkdir()
        what = {"weight_steps": steps, "reference": str(kept), "steps": max(1, *steps)}
        distances: dict[str, Any] = {}
        rounding: dict[str, Any] = {}
        try:
            report(f"Numbers: {reference.strategy}")
            self._run(self._task(reference, folder, writes_reference=True, **what))
            report(f"Numbers: {reference.strategy}, its first weights changed by rounding")
            ranks = self._run(self._task(reference, folder, disturbed=True, **what))
            rounding = {"losses": mean_losses(ranks), "distances": ranks[0]["distances"]}
        except RunFailed as failure:
            reference.reason = f"weights weren't compared: {failure}"
            return
        finally:
            self._judge({}, rounding)
        for result in compared:
            report(f"Numbers: {result.strategy}")
            try:
                distances[result.strategy] = self._run(self._task(result, folder, **what))[0][
                    "distances"
                ]
            except RunFailed as failure:
                result.reason = f"weights weren't compared: {failure}"
            self._judge(distances, rounding)

    def _judge(self, distances: dict[str, Any], rounding: dict[str, Any]) -> None:
        """Compare the numbers of all that were measured and weren't judged with their weights."""
        reference = self.reference
        for result in self.results:
            is_judged = result.numbers.get("weights_compared", False)
            if reference is None or result is reference or result.status != "measured" or is_judged:
                continue
            of_result = distances.get(result.strategy)
            result.numbers = numbers.judge(
                result, reference, self.settings.tolerance, of_result, rounding
            )

    def _task(self, result: Result, folder: Path, **options: Any) -> Task:
        self._runs += 1
        own = folder / f"run-{self._runs}"
        own.mkdir()
        settings = self.settings
        given = {
            "contender": result.strategy,
            "folder": str(own),
            "devices": settings.devices,
            "num_nodes": settings.num_nodes,
            "steps": settings.steps,
            "seed": settings.seed,
            "launched_at": 0.0,
            "global_batch_size": settings.global_batch_size,
        }
        return Task(**{**given, **options})

    def _run(self, task: Task) -> list[dict[str, Any]]:
        settings = self.settings
        try:
            return run(task, settings.run_options, settings.program, settings.timeout_s)
        finally:
            if task.checkpoint:
                shutil.rmtree(task.checkpoint, ignore_errors=True)
                Path(task.checkpoint).unlink(missing_ok=True)
