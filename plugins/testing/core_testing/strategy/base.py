"""The base class of all parts of the strategy's suite."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from core import Capability, Strategy
from core_testing.conformance import Conformance
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_runs, assert_equal_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from core_testing.cases import Case
    from core_testing.training import TrainingRecord


class StrategySuite(Conformance[Strategy]):
    """Makes strategies and ranks for the tests of one alias.

    Attributes:
        accelerator: name of the kind of device; tests are skipped where there aren't enough of
            them.
        compared_with: name of the kind of device of `single_device`, with which all is compared;
            None is the same kind.
        num_processes: number of processes, with a device each.
        num_devices: number of devices of the run; None is one a process.
        data_parallel_size: into how many shares the data is split; None is one a process.
        other_num_processes: another number in which it can run; None if there is none.
        trainer_options: of every Trainer and Fabric, such as `plugins` that the strategy can't do
            without.
        length: of the sequences that samples are, for a strategy that cuts sequences; None for
            samples that are none.
        dtype: of models and data. float64 shows what differs, and not how it was rounded.
        tolerance: by which weights and losses may differ from those of one device, relative to the
            largest.
        precisions: those in which it must train; each is compared with one device in the same.
        precision_tolerance: by which they may differ then.
        reduced_dtypes: dtypes that its collectives must work on.
        timeout_s: after which ranks that hang fail their test.
        in_process: make the ranks threads of one process (`in_one_process`), and skip what these
            can't show.
        new_interpreter: start the script of `test_a_script_trains` as a user does. False forks it
            from a process that has imported torch, core and `heavy_modules`: for a package of which
            another alias has proven the start.
        expected_capabilities: what it must declare; None leaves that open. Pin it, for declaring
            nothing skips much.
        optimizer: makes the optimizer of every case, called with the module, in a `staticmethod`;
            None takes the case's own. For a strategy that trains with an optimizer of its own only.
        num_experts: of a mixture in every network, for a strategy that distributes experts.
    """

    kind = "strategy"
    accelerator: ClassVar[str] = "cpu"
    compared_with: ClassVar[str | None] = None
    num_processes: ClassVar[int] = 2
    num_devices: ClassVar[int | None] = None
    data_parallel_size: ClassVar[int | None] = None
    other_num_processes: ClassVar[int | None] = 1
    trainer_options: ClassVar[Mapping[str, Any]] = {}
    length: ClassVar[int | None] = None
    dtype: ClassVar[torch.dtype] = torch.float64
    tolerance: ClassVar[float] = 1e-9
    precisions: ClassVar[tuple[str, ...]] = ("32-true", "64-true", "bf16-mixed")
    precision_tolerance: ClassVar[float] = 2e-2
    reduced_dtypes: ClassVar[tuple[torch.dtype, ...]] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    )
    timeout_s: ClassVar[float] = 60
    in_process: ClassVar[bool] = False
    new_interpreter: ClassVar[bool] = True
    expected_capabilities: ClassVar[Capability | None] = None
    optimizer: ClassVar[Any] = None
    num_experts: ClassVar[int] = 0

    def adapted(self, case: Case) -> Case:
        """A case in the suite's number format, with its optimizer, experts and sequences if it has
        some.
        """
        optimizer = type(self).optimizer or case.optimizer
        changes: dict[str, Any] = {
            "dtype": self.dtype,
            "num_experts": self.num_experts,
            "length": self.length,
        }
        return replace(case, optimizer=optimizer, **changes)

    @property
    def exchange_tolerance(self) -> float:
        """By how much a gradient that was exchanged may differ from the ranks' mean, relative to
        the largest.
        """
        return max(self.tolerance, 1e-7)

    def assert_like_one_device(
        self, run: TrainingRecord, expected: TrainingRecord, tolerance: float | None = None
    ) -> None:
        """Compare a run of rank 0 with that of one device."""
        assert_equal_runs(run, expected, self.tolerance if tolerance is None else tolerance)

    def assert_weights_like_one_device(
        self, found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
    ) -> None:
        """Compare weights at the end of a run with those of one device."""
        assert_equal_tensors(found, expected, tolerance)

    def assert_continues(self, run: TrainingRecord, expected: TrainingRecord) -> None:
        """Compare a run that went on elsewhere with the rest of the one that saved."""
        assert_equal_runs(run, expected, self.tolerance, with_moments=True)

    def assert_repeats(self, run: TrainingRecord, expected: TrainingRecord) -> None:
        """Compare a run with an earlier one of the same strategy."""
        assert_equal_runs(run, expected, self.tolerance)

    def declared(self) -> Capability:
        """The capabilities that an instance declares."""
        return _declared(type(self))  # type: ignore[arg-type]  # mypy: classes have no hash

    def left_out(self, test: str) -> str | None:
        """The reason to leave out a test, such as what ranks in one process can't show; see
        `Conformance.left_out`.
        """
        function = getattr(self, test)
        if self.num_processes == 1 and getattr(function, "of_several", False):
            return f"{self.alias} is tested in one process"
        what = getattr(function, "of_processes", None)
        return (
            f"ranks in one process can't show {what}"
            if self.in_process and what
            else super().left_out(test)
        )

    def pinned(self) -> Capability | None:
        """`expected_capabilities`."""
        return self.expected_capabilities

    def absent(self, test: str) -> str | None:
        """The reason why there aren't enough devices here."""
        from core import ACCELERATOR_REGISTRY, Found

        found = ACCELERATOR_REGISTRY.get(self.accelerator).detect()  # type: ignore[attr-defined]  # a class
        if not isinstance(found, Found):
            return f"accelerator {self.accelerator!r}: {found.reason}"
        if self.accelerator != "cpu" and found.count < self.num_processes:
            return (
                f"accelerator {self.accelerator!r}: {found.count} here, {self.num_processes} needed"
            )
        return None

    @property
    def shares(self) -> int:
        """Into how many shares the data is split."""
        return self.num_processes if self.data_parallel_size is None else self.data_parallel_size

    @property
    def backend(self) -> Backend:
        """The backend with which the ranks of a test train."""
        return self.backend_of(self.num_processes, self.shares)

    def backend_of(self, num_processes: int, data_parallel_size: int) -> Backend:
        """The same in another number of processes."""
        options, kept_for = (
            dict(self.trainer_options),
            (type(self), num_processes, data_parallel_size),
        )
        if self.num_devices is not None:
            options.setdefault("devices", self.num_devices)
        return Backend(
            self.make,
            self.accelerator,
            num_processes,
            data_parallel_size,
            options,
            self.timeout_s,
            kept_for=kept_for if self.keeps_ranks else None,
            in_process=self.in_process,
        )

    @property
    def one_device(self) -> Backend:
        """The backend with which all results are compared: a single device."""
        backend = one_device(self.reference_accelerator, self.keeps_ranks)
        return replace(backend, timeout_s=self.timeout_s, in_process=self.in_process)

    @property
    def reference_accelerator(self) -> str:
        """The kind of device of `one_device`."""
        return self.compared_with or self.accelerator

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(rank, *args)` on every rank; what it returned, one item a rank."""
        return self.backend.run(function, *args)

    def run_in_new_processes(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The same on ranks in which nothing has run yet, for a test that is about the process
        itself.
        """
        return replace(self.backend, kept_for=None).run(function, *args)


@functools.cache
def _declared(suite: type[StrategySuite]) -> Capability:
    capabilities: Capability = suite().alone(lambda: suite().make().capabilities)
    return capabilities
