"""What the parts of the strategy's suite stand on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from core import Capability, Strategy
from core.testing.conformance import Conformance
from core.testing.ranks import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class StrategySuite(Conformance[Strategy]):
    """Makes strategies and ranks for the tests of one alias.

    Attributes:
        accelerator: name of the kind of device; tests are skipped where there aren't enough of them.
        num_processes: how many, with a device each.
        num_shares: into how many shares the data is split; None is one a process.
        other_num_processes: another number in which it can run; None if there is none.
        trainer_options: of every Trainer and Fabric, such as `plugins` that the strategy can't do without.
        dtype: of models and data. float64 shows what differs, and not how it was rounded.
        tolerance: by which weights and losses may differ from those of one device, relative to the largest.
        precisions: those in which it must train; each is compared with one device in the same.
        precision_tolerance: by which they may differ then.
        reduced_dtypes: dtypes that its collectives must work on.
        timeout_s: after which ranks that hang fail their test.
        expected_capabilities: what it must declare; None leaves that open. Pin it, for declaring nothing skips much.
    """

    kind = "strategy"
    accelerator: ClassVar[str] = "cpu"
    num_processes: ClassVar[int] = 2
    num_shares: ClassVar[int | None] = None
    other_num_processes: ClassVar[int | None] = 1
    trainer_options: ClassVar[Mapping[str, Any]] = {}
    dtype: ClassVar[torch.dtype] = torch.float64
    tolerance: ClassVar[float] = 1e-9
    precisions: ClassVar[tuple[str, ...]] = ("32-true", "64-true", "bf16-mixed")
    precision_tolerance: ClassVar[float] = 2e-2
    reduced_dtypes: ClassVar[tuple[torch.dtype, ...]] = (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.uint8),
    )
    timeout_s: ClassVar[float] = 60
    expected_capabilities: ClassVar[Capability | None] = None

    def declared(self) -> Capability:
        """What an instance declares."""
        return _declared(type(self))  # type: ignore[arg-type]  # mypy: classes have no hash

    @property
    def shares(self) -> int:
        """Into how many shares the data is split."""
        return self.num_processes if self.num_shares is None else self.num_shares

    @property
    def backend(self) -> Backend:
        """What the ranks of a test train with."""
        return self.backend_of(self.num_processes, self.shares)

    def backend_of(self, num_processes: int, num_shares: int) -> Backend:
        """The same in another number of processes."""
        return Backend(
            self.make, self.accelerator, num_processes, num_shares, dict(self.trainer_options), self.timeout_s
        )

    @property
    def one_device(self) -> Backend:
        """What everything is compared with."""
        return Backend(lambda: "single_device", self.accelerator, timeout_s=self.timeout_s)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(rank, *args)` on every rank; what it returned, one item a rank."""
        return self.backend.run(function, *args)

    def needs_several(self) -> None:
        """Skip a test that says nothing about one process."""
        if self.num_processes == 1:
            pytest.skip(f"{self.alias} is tested in one process")

    @pytest.fixture(autouse=True)
    def _need_devices(self, _gate: None) -> None:
        from core import ACCELERATOR_REGISTRY, Found

        found = ACCELERATOR_REGISTRY.get(self.accelerator).detect()  # type: ignore[attr-defined]  # a class
        if not isinstance(found, Found):
            pytest.skip(f"accelerator {self.accelerator!r}: {found.reason}")
        if self.accelerator != "cpu" and found.count < self.num_processes:
            pytest.skip(f"accelerator {self.accelerator!r}: {found.count} here, {self.num_processes} needed")


@functools.cache
def _declared(suite: type[StrategySuite]) -> Capability:
    capabilities: Capability = suite().alone(lambda: suite().make().capabilities)
    return capabilities
