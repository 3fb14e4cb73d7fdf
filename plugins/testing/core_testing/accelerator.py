"""The conformance suite of accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from core import (
    STRATEGY_REGISTRY,
    Absent,
    Accelerator,
    Broken,
    CoreError,
    DeviceError,
    Found,
    Strategy,
    UnknownAliasError,
)
from core_testing.cases import Case
from core_testing.conformance import Conformance
from core_testing.marks import on_devices
from core_testing.ranks import Backend
from core_testing.training import assert_equal_runs, reference, train

if TYPE_CHECKING:
    from core_testing.ranks import Rank

_NO_SUCH_DEVICE = 1_000_000
_UNITS = ("_bytes", "_fraction", "_percent", "_count", "_s", "_c", "_w", "_hz", "_mhz")


class AcceleratorConformance(Conformance[Accelerator]):
    """All that an accelerator must prove. Subclass it, and set `alias`.

    Every test that touches a device does so in a process of its own. Where the devices are not,
    those are skipped.

    Attributes:
        holds_tensors: False for a device that takes whole programs with tensors of the host: none
            is made on it.
        dtype: in which the device trains; float64 where it has that.
        tolerance: by which training on it may differ from training on a CPU.
        timeout_s: after which a process that hangs fails its test.
    """

    kind = "accelerator"
    holds_tensors: bool = True
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-9
    timeout_s: float = 60

    def test_detects(self) -> None:
        """`detect` answers `Found`, `Absent` or `Broken`, with a count or a reason, and the same
        again.
        """
        answer, again = self._kind.detect(), self._kind.detect()
        assert isinstance(answer, Found | Absent | Broken)
        assert answer == again
        if isinstance(answer, Found):
            assert answer.count > 0
        else:
            assert answer.reason

    def test_detecting_touches_no_device(self) -> None:
        """To detect is to look: no context on a device, which would keep the process from being
        forked.
        """
        assert self._alone(_detect, self._kind)

    def test_has_a_name(self) -> None:
        """A name for messages, in lower case."""
        assert self._kind.name
        assert self._kind.name == self._kind.name.lower()

    @on_devices
    def test_parses_devices(self) -> None:
        """A number takes the first ones, -1 all, `"auto"` the default, and a list what it says."""
        accelerator, count = self.make(), self._count
        assert accelerator.parse_devices(1) == accelerator.parse_devices([0])
        assert len(accelerator.parse_devices(-1)) == count
        assert len(accelerator.parse_devices("auto")) == accelerator.default_num_devices()
        assert 1 <= accelerator.default_num_devices() <= count
        assert all(type(index) is int for index in accelerator.parse_devices(-1))

    @on_devices
    def test_refuses_devices_that_are_not_there(self) -> None:
        """A DeviceError that names what was asked for."""
        with pytest.raises(DeviceError, match=str(_NO_SUCH_DEVICE)):
            self.make().parse_devices([_NO_SUCH_DEVICE])

    @on_devices
    def test_makes_torch_devices(self) -> None:
        """One a given index, in the same order, of one type."""
        accelerator = self.make()
        indices = accelerator.parse_devices(-1) if self._count else []
        devices = accelerator.torch_devices(indices)
        assert len(devices) == len(indices)
        assert all(isinstance(device, torch.device) for device in devices)
        assert len({device.type for device in devices}) <= 1

    def test_names_strategies_that_exist(self) -> None:
        """`default_strategy` and `adapt_strategy` answer with registered aliases, or refuse with a
        CoreError.
        """
        accelerator = self.make()
        for num_devices in (1, 2):
            alias = accelerator.default_strategy(num_devices, 1)
            if alias is not None:
                STRATEGY_REGISTRY.spec(alias)
        try:
            adapted = accelerator.adapt_strategy("single_device", 1)
        except CoreError:
            return
        try:
            STRATEGY_REGISTRY.spec(adapted)
        except UnknownAliasError as error:
            pytest.fail(f"adapt_strategy('single_device') answers {adapted!r}: {error}")

    @on_devices
    def test_computes(self) -> None:
        """After set-up, twice over, tensors can be made and summed on every device."""
        assert self._alone(_compute, self.make, self.holds_tensors)

    @on_devices
    def test_keeps_random_state(self) -> None:
        """Once its state is put back the device draws the same numbers; one without a generator
        says None.
        """
        assert self._alone(_draw_again, self.make)

    @on_devices
    def test_reports_memory_by_units(self) -> None:
        """`memory_stats` maps names that end in a unit to numbers."""
        stats = self._alone(_memory, self.make)
        assert all(isinstance(value, float | int) for value in stats.values())
        assert all(name.endswith(_UNITS) for name in stats), (
            f"names without a unit: {sorted(stats)}"
        )

    @on_devices
    def test_trains(self) -> None:
        """With `strategy="auto"`, training is really on the device, and equals that on a CPU within
        the tolerance.
        """
        case = Case("accelerator", dtype=self.dtype)
        backend = Backend(lambda: "auto", self.alias, timeout_s=self.timeout_s)
        run, device = backend.run(_train_and_look, case)[0]
        assert device == (
            self._alone(_first_device, self.make).type if self.holds_tensors else "cpu"
        )
        assert_equal_runs(run, reference(case, "cpu", 1), self.tolerance)

    @property
    def _kind(self) -> type[Accelerator]:
        kind = self.registry.get(self.alias)
        assert isinstance(kind, type)
        return kind

    @property
    def _count(self) -> int:
        answer = self._kind.detect()
        assert isinstance(answer, Found)
        return answer.count

    def absent(self, test: str) -> str | None:
        """The reason why the devices that a test touches aren't here."""
        answer = self._kind.detect() if getattr(getattr(self, test), "on_devices", False) else None
        return (
            None
            if answer is None or isinstance(answer, Found)
            else f"{self.alias}: {answer.reason}"
        )

    def _alone(self, function: Any, *args: Any) -> Any:
        """Run the function in a process of its own, which ends with it, and return the result."""
        return self.alone(lambda: function(*args))


def _detect(kind: type[Accelerator]) -> bool:
    kind.detect()
    assert not torch.cuda.is_initialized(), "detect has initialized CUDA"
    return True


def _first_device(make: Any) -> torch.device:
    device: torch.device = make().torch_devices([0])[0]
    return device


def _compute(make: Any, holds_tensors: bool) -> bool:
    accelerator = make()
    for device in accelerator.torch_devices(accelerator.parse_devices(-1)):
        for _ in range(2):
            accelerator.setup()
            accelerator.setup_device(device)
        place = device if holds_tensors else torch.device("cpu")
        ones = torch.ones(3, device=place)
        accelerator.synchronize(device)
        assert ones.device == place
        assert ones.sum().item() == 3
    for _ in range(2):
        accelerator.teardown()
    return True


def _draw_again(make: Any) -> bool:
    accelerator = make()
    device = _first_device(make)
    accelerator.setup()
    accelerator.setup_device(device)
    state = accelerator.get_rng_state(device)
    if state is None:
        accelerator.set_rng_state(torch.zeros(0, dtype=torch.uint8), device)
        return True
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first = torch.rand(8, device=device)
    accelerator.set_rng_state(state, device)
    assert torch.equal(first, torch.rand(8, device=device)), "the random state was not put back"
    return True


def _memory(make: Any) -> dict[str, float]:
    accelerator, device = make(), _first_device(make)
    accelerator.setup()
    accelerator.setup_device(device)
    return dict(accelerator.memory_stats(device))


def _train_and_look(rank: Rank, case: Case) -> Any:
    strategy = rank.fabric(devices=1).strategy
    assert isinstance(strategy, Strategy)
    return train(rank, case), strategy.root_device.type
