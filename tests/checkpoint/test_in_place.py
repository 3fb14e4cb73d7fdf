"""What is loaded into tensors that exist: read once, hashed meanwhile, and without memory of its
own.
"""

import os

import pytest
import torch

from checkpoint.damaged_on_purpose import bounded_memory
from core import Fabric
from core.checkpoint import load_checkpoint
from core.checkpoint.format import digest, streaming
from core.contract import CheckpointCorruptedError, CheckpointError, Chunk, ShardedLeaf
from support.checkpoint_collectives import save_state
from support.tiny import Tiny, loader, make_trainer

BLOCK = digest.BLOCK_BYTES


def damage(path, position):
    (data,) = path.glob("*.data")
    with data.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


class Counted:
    """`os.preadv`, which counts bytes, and may give fewer than were asked for."""

    def __init__(self, monkeypatch, most=None):
        self.calls, self.most, self.real = [], most, os.preadv
        monkeypatch.setattr(os, "preadv", self)

    def __call__(self, descriptor, views, position):
        if self.most is not None:
            views = [views[0][: self.most]]
        size = self.real(descriptor, views, position)
        self.calls.append((position, size))
        return size


ROWS, COLS = 3000, 1000  # of 12 MB, three blocks


@pytest.fixture
def saved(path):
    names = ("same", "turned", "cast", "part", "columns")
    state = {name: torch.randn(ROWS, COLS) for name in names} | {
        "long": torch.randn(2 * ROWS * COLS),
        "list": [torch.arange(5), torch.tensor(7)],
        "conjugate": torch.randn(10, dtype=torch.complex64),
    }
    save_state(path, state)
    return state


@pytest.mark.parametrize("most", [None, 77_777])
def test_bytes_lie_as_they_were_saved_whatever_the_place(path, monkeypatch, saved, most):
    """Places of every kind, from one file that is read once, front to back; also where the system
    reads in part.
    """
    part, columns = torch.zeros(700, COLS), torch.zeros(ROWS, 300)
    targets = {
        "same": torch.zeros(ROWS, COLS),
        "turned": torch.zeros(COLS, ROWS).t(),
        "cast": torch.zeros(ROWS, COLS, dtype=torch.float64),
        "part": ShardedLeaf((ROWS, COLS), torch.float32, (Chunk((1500, 0), (700, COLS), part),)),
        "columns": ShardedLeaf(
            (ROWS, COLS), torch.float32, (Chunk((0, 600), (ROWS, 300), columns),)
        ),
        "long": torch.zeros(4 * ROWS * COLS)[::2],
        "conjugate": torch.zeros(10, dtype=torch.complex64).conj(),
        "list": [torch.zeros(5)],
        "unknown": torch.zeros(9),
    }
    counted = Counted(monkeypatch, most)
    loaded = load_checkpoint(path, targets)
    ends = [position + size for position, size in counted.calls]
    assert all(begin >= end for end, (begin, _) in zip(ends, counted.calls[1:], strict=False)), (
        "each byte once"
    )
    assert torch.equal(part, saved["part"][1500:2200])
    assert torch.equal(columns, saved["columns"][:, 600:900])
    for name in ("same", "turned", "cast", "long", "conjugate"):
        assert loaded[name] is targets[name]
        assert torch.equal(targets[name], saved[name].to(targets[name].dtype)), name
    assert loaded["list"][0] is targets["list"][0]
    assert [value.tolist() for value in loaded["list"]] == [[0, 1, 2, 3, 4], 7], (
        "what has no place is read, too"
    )


def test_blocks_of_which_nothing_is_wanted_are_passed_over(path, monkeypatch, saved):
    def elsewhere(tensor):
        """The tensor is another rank's."""
        return ShardedLeaf(tuple(tensor.shape), tensor.dtype)

    targets = {name: elsewhere(value) for name, value in saved.items() if name != "list"}
    targets["list"] = [elsewhere(value) for value in saved["list"]]
    chunk = Chunk((1500, 0), (700, COLS), torch.zeros(700, COLS))
    counted = Counted(monkeypatch)
    load_checkpoint(path, targets | {"part": ShardedLeaf((ROWS, COLS), torch.float32, (chunk,))})
    assert sum(size for _, size in counted.calls) <= 4 * BLOCK


def test_what_shares_bytes_in_the_file_may_lie_apart_here_and_what_is_tied_here_is_read_once(
    path, monkeypatch
):
    weight = torch.randn(BLOCK // 4 + 100)
    save_state(path, {"a": weight, "b": weight, "step": torch.tensor(3)})
    apart = {"a": torch.zeros_like(weight), "b": torch.zeros_like(weight)}
    assert load_checkpoint(path, apart)["step"] == 3
    assert torch.equal(apart["a"], weight)
    assert torch.equal(apart["b"], weight)
    tied = torch.zeros_like(weight)
    counted = Counted(monkeypatch)
    load_checkpoint(path, {"a": tied, "b": tied.detach()})
    assert torch.equal(tied, weight)
    assert sum(size for _, size in counted.calls) < 1.1 * weight.nbytes


def test_autograd_sees_that_a_tensor_was_filled(path):
    weight = torch.randn(10)
    save_state(path, {"w": weight})
    target = torch.zeros(10, requires_grad=True)
    loss = target.square().sum()
    load_checkpoint(path, {"w": target})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        inference = torch.zeros(10)
    load_checkpoint(path, {"w": inference})
    assert torch.equal(inference, weight)


def trained(fabric, width):
    module = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))
    model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
    fabric.backward(model(torch.randn(2, width)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def test_a_running_model_and_its_optimizer_are_filled_where_they_are(path):
    def memories(state):
        module, optimizer = state["model"].module, state["optimizer"].optimizer
        moments = [
            entry[key] for entry in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
        ]
        return [tensor.data_ptr() for tensor in (*module.parameters(), *moments)], [
            *module.parameters(),
            *moments,
        ]

    fabric = Fabric(accelerator="cpu")
    state = trained(fabric, 1600)  # 61 MB, of which 41 are moments
    fabric.save(path, state)
    before, tensors = memories(state)
    expected = [tensor.detach().clone() for tensor in tensors]
    for tensor in tensors:
        tensor.data.zero_()
    fabric.load(path, state)  # what is imported and allocated for the first time
    with bounded_memory(12 << 20):  # neither copies nor a mapping of the file
        fabric.load(path, state)
    after, tensors = memories(state)
    assert after == before
    assert all(map(torch.equal, tensors, expected))
    steps = [entry["step"] for entry in state["optimizer"].optimizer.state.values()]
    assert steps == [1, 1, 1, 1]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_a_failed_load_has_overwritten_is_not_saved_until_it_is_made_good(
    path, monkeypatch, is_interrupted
):
    def interrupted(stream, reads):
        raise KeyboardInterrupt

    fabric = Fabric(accelerator="cpu")
    state = trained(fabric, 1100)
    other, later = path.with_name("other.ckpt"), path.with_name("next.ckpt")
    for name in (path, other):
        fabric.save(name, state)
    if is_interrupted:
        with monkeypatch.context() as patch:
            patch.setattr(streaming._Stream, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fabric.load(path, state)
    else:
        damage(path, BLOCK + 5)  # among the weights
        with pytest.raises(CheckpointCorruptedError, match="is overwritten in part") as caught:
            fabric.load(path, state)
        assert caught.value.overwritten
    with pytest.raises(
        CheckpointError, match=r"Sequential can't be saved: the load of .*ckpt' .*make it anew"
    ):
        fabric.save(later, state)
    fabric.load(other, state)
    fabric.save(later, state)


def test_what_a_failed_load_has_overwritten_may_be_made_good_by_other_means_than_cores(path):
    fabric = Fabric(accelerator="cpu")
    model = {"model": trained(fabric, 20)["model"]}
    weights = {name: value.clone() for name, value in model["model"].module.state_dict().items()}
    fabric.save(path, model)
    damage(path, 5)
    with pytest.raises(CheckpointCorruptedError):
        fabric.load(path, model)
    with pytest.raises(CheckpointError, match="can't be saved"):
        fabric.save(path.with_name("next.ckpt"), model)
    with torch.no_grad():  # as a forward changes the statistics of a batch norm
        next(model["model"].parameters()).mul_(1)
    with pytest.raises(CheckpointError, match="can't be saved"):
        fabric.save(path.with_name("next.ckpt"), model)
    model["model"].module.load_state_dict(weights)
    fabric.save(path.with_name("next.ckpt"), model)


def test_a_trainer_does_not_go_on_with_a_module_that_is_half_loaded(tmp_path):
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(Tiny(), loader(), loader())
    good, bad = tmp_path / "good.ckpt", tmp_path / "bad.ckpt"
    for path in (good, bad):
        trainer.save_checkpoint(path)
    damage(bad, 5)
    module, trainer = Tiny(), make_trainer(tmp_path, max_epochs=2)
    with pytest.raises(CheckpointCorruptedError, match=r"bad.ckpt/.* is overwritten in part"):
        trainer.fit(module, loader(), loader(), ckpt_path=bad)
    with pytest.raises(
        CheckpointError, match=r"Tiny can't be trained: the load of .*bad\.ckpt' failed"
    ):
        trainer.fit(module, loader(), loader())
    with pytest.raises(CheckpointError, match="Tiny can't be evaluated"):
        make_trainer(tmp_path).validate(module, loader())
    trainer = make_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loader(), loader(), ckpt_path=good)
    assert trainer.current_epoch == 2
