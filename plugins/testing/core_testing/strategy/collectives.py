"""Collectives: the same meaning on every strategy that has them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from core import Capability
from core.contract import DirectCollectives, UnsupportedError
from core_testing.marks import needs
from core_testing.strategy.base import StrategySuite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core import Collectives, Fabric
    from core_testing.ranks import Rank

_SHAPES = ((), (1,), (3,), (7, 1, 5), (0,), (3, 0))
_NUMBERS = ("mean", "sum", "min", "max", "product")
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
)


class CollectiveTests(StrategySuite):
    """Each collective, against what plain Python makes of all ranks' values."""

    @needs(Capability.COLLECTIVES)
    @pytest.mark.parametrize("dtype", _DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
    def test_reduces(self, dtype: torch.dtype) -> None:
        """`reduce` by every operation, in odd and empty shapes; the argument stays as it was."""
        self._need_ranks()
        self._need_dtype(dtype)
        self._check(_check_reductions, dtype)

    @needs(Capability.COLLECTIVES)
    @pytest.mark.parametrize("dtype", _DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
    def test_gathers(self, dtype: torch.dtype) -> None:
        """`all_gather` stacks by rank, in odd and empty shapes, also what isn't contiguous."""
        self._need_ranks()
        self._need_dtype(dtype)
        self._check(_check_gathering, dtype)

    @needs(Capability.COLLECTIVES)
    def test_reduces_by_the_mean_at_first(self) -> None:
        """`reduce` without an operation takes the mean, of integers as floats."""
        self._check(_check_default_operation)

    @needs(Capability.COLLECTIVES)
    def test_reduces_nested_data(self) -> None:
        """Fabric's forms take nested structures and numbers."""
        self._need_ranks()
        self._check(_check_nested)

    @needs(Capability.COLLECTIVES)
    def test_gradients_flow_through_all_gather(self) -> None:
        """With `sync_grads`, each rank gets what all ranks want of its own tensor; without,
        none.
        """
        self._check(_check_gradients)

    @needs(Capability.COLLECTIVES)
    def test_broadcasts_tensors(self) -> None:
        """From every rank to all, with dtype and shape, on the receiver's device."""
        self._check(_check_tensor_broadcast)

    @needs(Capability.COLLECTIVES)
    def test_broadcasts_objects(self) -> None:
        """Any object that pickles, from every rank, small and large."""
        self._check(_check_object_broadcast)

    @needs(Capability.COLLECTIVES)
    def test_gathers_objects(self) -> None:
        """On the rank that asks, in the order of ranks; None elsewhere."""
        self._check(_check_gathered_objects)

    @needs(Capability.COLLECTIVES)
    def test_barrier_waits(self, folder: Path) -> None:
        """No rank passes before the last one has come."""
        self._check(_check_barrier, folder)

    @needs(Capability.COLLECTIVES)
    def test_agrees_on_yes_and_no(self) -> None:
        """`reduce_boolean_decision`: all must say so, or any."""
        self._check(_check_decisions)

    @needs(Capability.COLLECTIVES)
    def test_checkpoint_ios_can_talk(self) -> None:
        """`session.collectives`, which a CheckpointIO gets, counts and connects the same ranks."""
        self._check(_check_storage_collectives)

    def test_one_process_is_alone(self) -> None:
        """In a world of one, collectives give back what they get; `all_gather` adds no axis."""
        if 1 not in (self.num_processes, self.other_num_processes):
            pytest.skip(f"{self.alias} is not tested in one process")
        assert all(self.backend_of(1, 1).run(_together, _check_identity))

    def _check(self, check: Callable[..., None], *args: Any) -> None:
        assert all(self.run(_together, check, *args))

    def _need_ranks(self) -> None:
        if self.num_processes == 1:
            pytest.skip("it takes several ranks; `test_one_process_is_alone` is for one")

    def _need_dtype(self, dtype: torch.dtype) -> None:
        if dtype not in self.reduced_dtypes:
            pytest.skip(f"{self.alias} is not tested with {dtype}")


def _together(rank: Rank, check: Callable[..., None], *args: Any) -> bool:
    """Bring the ranks together, check, and part."""
    fabric = rank.fabric()
    fabric.barrier()
    check(fabric, *args)
    fabric.teardown()
    return True


def _value(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A rank's values: small numbers, which no dtype rounds; the smallest isn't on rank 0
    everywhere.
    """
    count = torch.Size(shape).numel()
    numbers = [(rank * 3 + position * 2) % 5 + 1 for position in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(dtype)


def _expected(operation: str, values: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    stacked = torch.stack([value.double() for value in values])
    if operation == "mean":
        floating = dtype if dtype.is_floating_point else torch.get_default_dtype()
        return stacked.mean(0).to(floating)
    reduced = {"sum": stacked.sum(0), "product": stacked.prod(0)}
    if operation in reduced:
        return reduced[operation].to(dtype)
    return (stacked.amin(0) if operation == "min" else stacked.amax(0)).to(dtype)


def _check_reductions(fabric: Fabric, dtype: torch.dtype) -> None:
    strategy = fabric.strategy
    for shape in _SHAPES:
        values = [_value(number, shape, dtype) for number in range(strategy.world_size)]
        for operation in _NUMBERS:
            own = values[strategy.global_rank].to(strategy.root_device)
            before = own.clone()
            found = strategy.reduce(own, reduce_op=operation)
            assert torch.equal(own, before), f"reduce({operation}) has changed its argument"
            assert found.device == own.device
            torch.testing.assert_close(
                found.cpu(), _expected(operation, values, dtype), msg=f"{operation} of {shape}"
            )


def _check_gathering(fabric: Fabric, dtype: torch.dtype) -> None:
    strategy = fabric.strategy
    for shape in _SHAPES:
        values = [_value(number, shape, dtype) for number in range(strategy.world_size)]
        found = strategy.all_gather(values[strategy.global_rank].to(strategy.root_device))
        assert found.dtype == dtype
        assert torch.equal(found.cpu(), torch.stack(values)), f"all_gather of {shape}"
    # A tensor that isn't contiguous: a backend that sends its memory as it lies would mix rows and
    # columns up.
    wide = [_value(number, (4, 6), dtype) for number in range(strategy.world_size)]
    found = strategy.all_gather(wide[strategy.global_rank].to(strategy.root_device).t())
    assert torch.equal(found.cpu(), torch.stack([value.t() for value in wide])), (
        "all_gather of a transposed tensor"
    )


def _check_default_operation(fabric: Fabric) -> None:
    strategy = fabric.strategy
    expected = sum(range(strategy.world_size)) / strategy.world_size
    for dtype in (torch.float32, torch.int64):
        own = torch.tensor(strategy.global_rank, dtype=dtype, device=strategy.root_device)
        assert strategy.reduce(own).item() == expected


def _check_nested(fabric: Fabric) -> None:
    number, size = fabric.global_rank, fabric.world_size
    total = sum(range(size))
    data = {"tensor": torch.tensor([float(number)]), "pair": (number, [float(number)])}
    reduced = fabric.all_reduce(data, reduce_op="sum")
    assert reduced["tensor"].tolist() == [total]
    assert reduced["pair"][0].item() == total
    assert reduced["pair"][1][0].item() == total
    gathered = fabric.all_gather(data)
    assert gathered["tensor"].tolist() == [[float(other)] for other in range(size)]


def _check_gradients(fabric: Fabric) -> None:
    strategy = fabric.strategy
    own = torch.ones(2, requires_grad=True, device=strategy.root_device)
    factors = torch.arange(1.0, strategy.world_size + 1, device=strategy.root_device).unsqueeze(1)
    if strategy.world_size == 1:
        factors = factors[0]
    bias = torch.zeros_like(strategy.all_gather(own)).requires_grad_()
    doubled = 2 * bias  # made before the gather, so that its gradient is taken after the gather's
    ((strategy.all_gather(own, sync_grads=True) + doubled) * factors).sum().backward()
    assert own.grad is not None
    wanted = (strategy.global_rank + 1) * strategy.world_size
    assert own.grad.tolist() == [wanted, wanted]
    assert bias.grad is not None
    assert torch.equal(bias.grad, (2 * factors).expand_as(bias)), (
        "the gradient of what is added is this rank's own"
    )
    if strategy.world_size > 1:
        assert not strategy.all_gather(own).requires_grad


def _check_tensor_broadcast(fabric: Fabric) -> None:
    strategy = fabric.strategy
    for source in range(strategy.world_size):
        for shape in _SHAPES:
            own = _value(strategy.global_rank, shape, torch.float32).to(strategy.root_device)
            found = strategy.broadcast(own, source)
            assert torch.equal(found.cpu(), _value(source, shape, torch.float32)), (
                f"of rank {source}, {shape}"
            )
            assert found.device == strategy.root_device


def _check_object_broadcast(fabric: Fabric) -> None:
    strategy = fabric.strategy
    for source in range(strategy.world_size):
        for size in (0, 10, 300_000):
            own: dict[str, Any] = {
                "from": strategy.global_rank,
                "nested": [(1, None)],
                "bytes": b"x" * size,
            }
            assert strategy.broadcast(own, source) == {**own, "from": source}
    assert strategy.broadcast(strategy.global_rank) == 0


def _check_gathered_objects(fabric: Fabric) -> None:
    strategy = fabric.strategy
    for destination in range(strategy.world_size):
        found = strategy.gather_objects({"from": strategy.global_rank}, destination)
        expected = [{"from": number} for number in range(strategy.world_size)]
        assert found == (expected if strategy.global_rank == destination else None)


def _check_barrier(fabric: Fabric, folder: Path) -> None:
    strategy = fabric.strategy
    for late in range(strategy.world_size):
        if strategy.global_rank == late:
            time.sleep(0.3)
            (folder / f"late-{late}").touch()
        strategy.barrier(f"for rank {late}")
        assert (folder / f"late-{late}").exists(), f"the barrier did not wait for rank {late}"


def _check_decisions(fabric: Fabric) -> None:
    strategy = fabric.strategy
    first, everybody = strategy.global_rank == 0, strategy.world_size == 1
    assert strategy.reduce_boolean_decision(True) is True
    assert strategy.reduce_boolean_decision(False) is False
    assert strategy.reduce_boolean_decision(first) is everybody
    assert strategy.reduce_boolean_decision(first, all=False) is True
    assert strategy.reduce_boolean_decision(False, all=False) is False


def _check_storage_collectives(fabric: Fabric) -> None:
    collectives = fabric.session.collectives
    assert (collectives.rank, collectives.size) == (
        fabric.strategy.global_rank,
        fabric.strategy.world_size,
    )
    assert collectives.broadcast_object({"from": collectives.rank}) == {"from": 0}
    gathered = collectives.gather_objects(collectives.rank)
    assert gathered == (list(range(collectives.size)) if collectives.rank == 0 else None)
    collectives.barrier()
    _check_exchange(collectives)


def _check_exchange(collectives: Collectives) -> None:
    """Ranks reach each other one by one, where storage in the background can do that."""
    try:
        background = collectives.in_background()
    except UnsupportedError:
        return
    if isinstance(background, DirectCollectives):
        rank, size = background.rank, background.size
        received = bytearray(3)
        background.exchange(
            [((rank + 1) % size, bytearray([rank] * 3))], [((rank - 1) % size, received)]
        )
        assert received == bytearray([(rank - 1) % size] * 3)
        assert background.agree(True) is True
        assert background.agree(rank == 0) is (size == 1)


def _check_identity(fabric: Fabric) -> None:
    strategy = fabric.strategy
    tensor = torch.tensor([1.0, 2.0], device=strategy.root_device)
    assert strategy.reduce(tensor).tolist() == [1.0, 2.0]
    assert strategy.all_gather(tensor).shape == (2,)
    assert strategy.broadcast({"a": 1}) == {"a": 1}
    assert strategy.gather_objects("x") == ["x"]
    assert strategy.reduce_boolean_decision(False) is False
