"""Saves from a CUDA device, and loads into it; it is simulated, and does everything as late as it
may.
"""

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from core import Fabric
from core.checkpoint import (
    AsyncCheckpointIO,
    DistributedCheckpointIO,
    await_copies,
    load_checkpoint,
)
from core.contract import CheckpointError, Chunk, ShardedLeaf
from support.checkpoint_collectives import save_state
from support.late_cuda import CUDA, MAIN_EARLY, MAIN_LATE, late, simulate

IN_BOTH_ORDERS = pytest.mark.parametrize("saving", [MAIN_LATE, MAIN_EARLY], indirect=True)


def leaf(tensor):
    """A state may name tensors of torch's own class only, or parts of any."""
    return ShardedLeaf(
        tuple(tensor.shape),
        tensor.dtype,
        (Chunk((0,) * tensor.dim(), tuple(tensor.shape), tensor),),
    )


class Saving:
    """A model on the device, and its checkpoints."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.weights = [
            torch.nn.Parameter(late(torch.full(shape, 1.0))) for shape in ((3 << 20,), (5, 7), ())
        ]
        self.buffer = late(torch.full((300, 4), 1.0, dtype=torch.float16))
        self.optimizer = torch.optim.SGD(self.weights, lr=1.0)
        self.io = AsyncCheckpointIO(DistributedCheckpointIO(), **options)
        self.io.stepped_tensors = lambda: self.weights

    def save(self, name="a.ckpt"):
        tensors = {
            f"w{number}": leaf(weight.detach()) for number, weight in enumerate(self.weights)
        }
        tensors["transposed"] = leaf(self.weights[1].detach().t())
        save_state(self.folder / name, tensors | {"buffer": leaf(self.buffer)}, self.io)

    def step(self):
        for weight in self.weights:
            weight.grad = late(torch.ones(weight.shape))
        self.optimizer.step()

    def saved(self, name="a.ckpt"):
        CUDA.gate.set()
        self.io.teardown()
        CUDA.main.synchronize()
        loaded = load_checkpoint(self.folder / name)
        return {name: value.unique().tolist() for name, value in loaded.items()}


@pytest.fixture
def saving(tmp_path, monkeypatch, request):
    simulate(monkeypatch, getattr(request, "param", MAIN_EARLY))
    return Saving(tmp_path)


ONES = {name: [1.0] for name in ("w0", "w1", "w2", "transposed", "buffer")}


@IN_BOTH_ORDERS
def test_a_step_after_the_save_began_does_not_change_what_is_saved(saving):
    saving.save()
    saving.buffer.fill_(2)  # as the next forward does with those of batch norms
    saving.step()
    assert saving.saved() == ONES
    assert [weight.detach().unique().item() for weight in saving.weights] == [0, 0, 0]


@IN_BOTH_ORDERS
def test_a_save_has_the_step_before_it(saving):
    saving.step()
    saving.save()
    assert saving.saved() == {name: [1.0 if name == "buffer" else 0.0] for name in ONES}


def test_the_forward_goes_on_while_weights_are_copied(saving):
    saving.save()
    copied_at_once = CUDA.streams[1].num_done
    seen = []
    CUDA.main.enqueue(lambda: seen.append("forward"))
    assert seen == ["forward"]
    assert CUDA.streams[1].num_done == copied_at_once < len(CUDA.streams[1].queue), (
        "weights are still to be copied"
    )
    saving.step()
    assert CUDA.streams[1].num_done == len(CUDA.streams[1].queue)
    assert saving.saved() == ONES


def test_a_device_may_copy_before_it_goes_on(tmp_path, monkeypatch):
    simulate(monkeypatch, MAIN_EARLY)
    saving = Saving(tmp_path, during_forward=False)
    saving.save()
    with torch.no_grad():
        saving.weights[0].fill_(5)
    assert saving.saved() == ONES


def test_weights_that_something_else_changes_meanwhile_are_an_error_and_no_checkpoint(saving):
    saving.save()
    with torch.no_grad():
        saving.weights[0].fill_(5)
    CUDA.gate.set()
    with pytest.raises(
        CheckpointError, match="changed while a save was copying them, by something else than their"
    ):
        saving.io.teardown()
    assert not (saving.folder / "a.ckpt").exists()


def test_what_changes_weights_can_wait_for_the_copies(saving):
    saving.save()
    await_copies()
    with torch.no_grad():
        saving.weights[0].fill_(5)
    assert saving.saved() == ONES


def test_memory_is_locked_once_and_of_the_size_that_is_needed(tmp_path, monkeypatch):
    simulate(monkeypatch, MAIN_LATE)
    hooks = dict(_global_optimizer_pre_hooks)
    saving = Saving(tmp_path)
    CUDA.gate.set()
    for number in range(3):
        saving.save(f"{number}.ckpt")
    (num_bytes,) = CUDA.locked.values()
    own = (
        sum(weight.nbytes for weight in saving.weights)
        + saving.weights[1].nbytes
        + saving.buffer.nbytes
    )
    assert own < num_bytes < own + 10 * 64
    saving.io.teardown()
    assert not CUDA.locked
    assert dict(_global_optimizer_pre_hooks) == hooks, "no step pays for a save any more"


@pytest.fixture
def is_pinned(monkeypatch):
    """Of each memory that is asked for, whether it is pinned."""
    seen, real_empty = [], torch.empty

    def empty(*sizes, pin_memory=False, **options):
        seen.append(pin_memory)
        return real_empty(*sizes, **options)

    simulate(monkeypatch, MAIN_LATE)
    monkeypatch.setattr(torch, "empty", empty)
    return seen


def test_a_load_fills_one_buffer_while_the_device_reads_the_other(tmp_path, is_pinned):
    values = {"x": torch.randn(3 << 20), "y": torch.randn(5, 7)}
    save_state(tmp_path / "a.ckpt", values)
    targets = {name: late(torch.zeros_like(value)) for name, value in values.items()}
    is_pinned.clear()
    load_checkpoint(tmp_path / "a.ckpt", targets)
    assert all(
        torch.equal(targets[name].as_subclass(torch.Tensor), value)
        for name, value in values.items()
    )
    assert CUDA.copies == CUDA.num_waits == 4, (
        "three parts of at most 4 MiB, and a small one; each is waited for"
    )
    assert is_pinned == [True, True]


def test_a_save_that_waits_reads_one_buffer_while_the_device_fills_the_other(tmp_path, is_pinned):
    values = {
        "x": torch.randn(3 << 20),
        "y": torch.randn(5, 7),
        "z": torch.randn(700, 900).t(),
        "0": torch.ones(()),
    }
    state = {name: leaf(late(value)) for name, value in values.items()}
    save_state(tmp_path / "a.ckpt", state)
    loaded = load_checkpoint(tmp_path / "a.ckpt")
    assert all(torch.equal(loaded[name], value) for name, value in values.items())
    assert is_pinned == [True, True]
    assert CUDA.copies == CUDA.num_waits > 8


def test_a_session_names_what_only_optimizers_change(tmp_path):
    io = AsyncCheckpointIO()
    fabric = Fabric(accelerator="cpu", devices=1, plugins=io)
    trained, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    module, optimizer = fabric.setup(
        torch.nn.Sequential(trained, frozen), torch.optim.Adam(trained.parameters())
    )
    fabric.backward(module(torch.ones(1, 3)).sum())
    optimizer.step()
    fabric.save(tmp_path / "a.ckpt", {"model": module, "optimizer": optimizer})
    moments = [
        entry[name]
        for entry in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq", "step")
    ]
    expected = {tensor.data_ptr() for tensor in (*trained.parameters(), *moments)}
    assert {tensor.data_ptr() for tensor in io.stepped_tensors()} == expected
    fabric.teardown()
