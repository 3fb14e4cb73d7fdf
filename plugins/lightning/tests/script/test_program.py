"""A program for Lightning, unchanged, on core: its weights are Lightning's, and each reads the
other's checkpoints.
"""

import os
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import core_lightning
from core import ModuleError
from core.checkpoint import load_checkpoint
from core_lightning.checkpoints.left_out import note_objects
from core_testing import programs

HERE = Path(__file__).parents[1]
RECORDED = HERE / "data" / "lightning_2.6.6.ckpt"
"""A file that Lightning 2.6.6 has saved after two epochs of `program.py`, with torch 2.13.0 on a
CPU.
"""
AFTER_FOUR = torch.tensor([[-0.32455283403396606, -0.7549933791160583]])
"""Lightning's weights after four epochs, of one run, or of two, the second from what core has
saved.
"""
SHUFFLED = torch.tensor([[-0.36182284355163574, -0.7486072182655334]])
"""Likewise after two epochs of shuffled data."""
AS_ROUNDED = {"rtol": 1e-5, "atol": 1e-6}
"""How far the same program may come to lie from what another kind of processor has recorded: it
rounds otherwise.
"""

pytestmark = pytest.mark.numbers


@pytest.fixture
def recorded():
    return torch.load(RECORDED, weights_only=True)


def test_weights_and_checkpoint_are_lightnings(program, recorded, tmp_path):
    trainer, _ = program.train(tmp_path, 2)
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    assert {key for key in recorded if key not in saved} == set()
    for key in ("epoch", "global_step", "hyper_parameters", "hparams_name", "lr_schedulers"):
        assert saved[key] == recorded[key], key
    assert_close(saved["state_dict"], recorded["state_dict"], **AS_ROUNDED)
    (ours,), (theirs,) = saved["optimizer_states"], recorded["optimizer_states"]
    assert_close(ours["state"], theirs["state"], **AS_ROUNDED)
    assert saved["mine"] == 5
    assert saved["loops"]["fit_loop"].keys() == recorded["loops"]["fit_loop"].keys()
    epochs, batches = "epoch_progress", "epoch_loop.batch_progress"
    assert saved["loops"]["fit_loop"][epochs] == recorded["loops"]["fit_loop"][epochs]
    assert saved["loops"]["fit_loop"][batches] == recorded["loops"]["fit_loop"][batches]


def test_core_goes_on_from_either(program, recorded, tmp_path):
    """From Lightning's file, and from its own, of the same form: as an uninterrupted run, and as
    Lightning's.
    """
    at_once = program.train(tmp_path / "four", 4)[1].layer.weight
    trainer, _ = program.train(tmp_path / "two", 2)
    own = tmp_path / "own.ckpt"
    trainer.save_checkpoint(own)
    for path in (RECORDED, own):
        trainer, net = program.train(tmp_path / path.stem, 4, ckpt_path=path)
        assert_close(net.layer.weight, AFTER_FOUR, **AS_ROUNDED)
        assert path is RECORDED or torch.equal(net.layer.weight, at_once)
        assert (trainer.current_epoch, trainer.global_step) == (4, 8)
        loaded = program.Net.load_from_checkpoint(path)
        assert_close(loaded.layer.weight, recorded["state_dict"]["layer.weight"], **AS_ROUNDED)
        assert loaded.hparams == {"width": 2, "lr": 0.05}


def test_a_shuffled_run_is_lightnings_also_if_it_is_saved_inside_an_epoch(
    program, tmp_path, monkeypatch
):
    saved = tmp_path / "saved.ckpt"

    def at_three(net, *_):
        if net.global_step == 3:
            net.trainer.save_checkpoint(saved)

    monkeypatch.setattr(program.Net, "on_train_batch_end", at_three)
    at_once = program.train(tmp_path, 2, shuffle=True)[1].layer.weight
    assert_close(at_once, SHUFFLED, **AS_ROUNDED)
    trainer, net = program.train(tmp_path, 2, ckpt_path=saved, shuffle=True)
    assert torch.equal(net.layer.weight, at_once)
    assert trainer.global_step == 4


def test_the_best_weights_are_tested_without_a_model(program, tmp_path):
    trainer, net = program.train(tmp_path, 2)
    best = load_checkpoint(trainer.checkpoint_callback.best_model_path)["model"]["layer.weight"]
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(2, 2), torch.ones(2, 1))
    )
    with torch.no_grad():
        net.layer.weight.zero_()
    (result,) = trainer.test(dataloaders=data)
    assert result["weight"] == pytest.approx(float(best.sum()))


def test_objects_are_unpickled_for_one_who_trusts_the_file(lit, tmp_path):
    """Those that `PickledObjects` keeps: without the switch, nothing of them is executed."""
    path = tmp_path / "last.ckpt"

    class Judged(lit.Plain):
        def __init__(self, loss, width):
            super().__init__()
            self.save_hyperparameters()
            self.criterion = loss

    with pytest.warns(
        UserWarning,
        match=r"hyperparameters 'loss' \(of [\w.]+made\) of Judged .* `core run --lightning-t",
    ):
        note_objects(Judged(Loss(), 3), [])
    trainer = lit.fit(
        Judged(Loss(), 3), callbacks=[core_lightning.PickledObjects()], enable_checkpointing=True
    )
    trainer.save_checkpoint(path)
    unpickled.clear()
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"width": 3}
    with path.open("rb") as file, pytest.raises(ModuleError, match="needs 'loss'"):
        Judged.load_from_checkpoint(file)
    assert not unpickled
    assert isinstance(Judged.load_from_checkpoint(path, trusted=True).criterion, Loss)
    assert unpickled == ["loss"]


unpickled = []


def made():
    unpickled.append("loss")
    return Loss()


class Loss:
    def __reduce__(self):
        return made, ()


@pytest.mark.slow
def test_the_prelude_runs_it_in_two_processes(tmp_path):
    command = [
        *programs.CORE,
        "run",
        "--lightning",
        "--devices",
        "2",
        str(HERE / "program.py"),
        str(tmp_path),
        "1",
    ]
    done = programs.run(
        command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_the_program_says_how_many_processes_there_are(tmp_path, devices):
    """As under Lightning, which is started by `python`: no `--devices` is needed, whichever number
    the program has.
    """
    SCRIPT = """
import sys
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=int(sys.argv[1]), strategy="ddp")
fabric.launch()
sys.stdout.write(f"{fabric.global_rank}/{fabric.world_size}\\n")
"""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [*programs.CORE, "run", "--lightning", "script.py", str(devices)]
    done = programs.run(
        command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"{rank}/{devices}" for rank in range(devices)]
