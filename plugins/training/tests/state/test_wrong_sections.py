"""Checkpoints that somebody has changed: where a section is something else, `fit` ends in a
CheckpointError.
"""

import copy

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback
from core.checkpoint import load_checkpoint
from core.contract import CheckpointError
from support.small_nets import Net, batches, quiet_trainer


class Counting(Callback):
    def __init__(self):
        self.state = {"n": 1}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = {"n": state["n"] + 1}


class Trained(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fit(path, *, goes_on):
    net = Trained()
    trainer = quiet_trainer(max_epochs=1 + goes_on, plugins="torch", callbacks=[Counting()])
    trainer.fit(
        net, DataLoader(torch.cat(batches()), batch_size=2), ckpt_path=path if goes_on else None
    )
    if not goes_on:
        trainer.save_checkpoint(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "last.pt"
    fit(path, goes_on=False)
    return load_checkpoint(path)


ZEROS = [torch.zeros(1, 4), torch.zeros(1)]
"""Of the size of the net's parameters."""


def adam_state(**changed):
    entries = {
        n: {"step": torch.tensor(1.0), "exp_avg": z, "exp_avg_sq": z} for n, z in enumerate(ZEROS)
    }
    options = {
        "lr": 0.01,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0,
        "amsgrad": False,
        "initial_lr": 0.01,
    }
    return {"state": entries, "param_groups": [{**options, "params": [0, 1], **changed}]}


def fit_lightnings(saved, path, optimizer, **changed):
    state = {
        "pytorch-lightning_version": "2.0.0",
        "state_dict": saved["model"],
        "optimizer_states": [optimizer],
    }
    rest = {"lr_schedulers": saved["lr_schedulers"], "epoch": 0, "global_step": 1}
    torch.save(state | rest | changed, path)
    fit(path, goes_on=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", ["state_dict", "optimizer_states", "lr_schedulers", "epoch"])
@pytest.mark.parametrize("wrong", [7, [3], "x"], ids=str)
def test_a_section_of_lightnings_of_another_type_is_told(saved, tmp_path, section, wrong):
    with pytest.raises(CheckpointError) as caught:
        fit_lightnings(saved, tmp_path / "lightning.pt", adam_state(), **{section: wrong})
    assert len(str(caught.value)) < 3000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "state", [adam_state(), {**adam_state(), "state": {}}], ids=["whole", "before a step"]
)
def test_a_state_of_lightnings_that_fits_is_taken(saved, tmp_path, state):
    fit_lightnings(saved, tmp_path / "lightning.pt", state)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", [(), ("at_opening",)], ids=["of the place", "of the loader"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("python", (3, ["x"] * 625, None)),
        ("torch", torch.zeros(8, dtype=torch.uint8)),
        ("numpy", {"bit_generator": "MT19937", "state": {"key": [1]}}),
        ("device", "x"),
    ],
)
def test_random_numbers_of_a_wrong_type_are_told_when_they_are_loaded(
    saved, tmp_path, name, wrong, place
):
    class TakingNone(Trained):
        def on_train_epoch_start(self):
            raise AssertionError("an epoch has begun with a state that isn't one")

    path, state = tmp_path / "wrong.pt", copy.deepcopy(saved)
    random = state["ranks"][0]["random"]
    for key in place:
        random = random.setdefault(key, copy.deepcopy(random))
    random[name] = wrong
    torch.save(state, path)
    trainer = quiet_trainer(max_epochs=2, plugins="torch", callbacks=[Counting()])
    with pytest.raises(CheckpointError, match="its ranks is something that can't be restored"):
        trainer.fit(TakingNone(), DataLoader(torch.cat(batches()), batch_size=2), ckpt_path=path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (7, r"its callbacks\['Counting'\] is 7 that can't be restored\. TypeError"),
        (
            {"m": 1},
            r"its callbacks\['Counting'\] is \{'m': 1\} that can't be restored\. KeyError: 'n'",
        ),
    ],
)
def test_what_a_callback_cannot_take_is_told_with_its_place(saved, tmp_path, wrong, message):
    state = copy.deepcopy(saved)
    state["callbacks"]["Counting"]["state"] = wrong
    torch.save(state, tmp_path / "wrong.pt")
    with pytest.raises(CheckpointError, match=message):
        fit(tmp_path / "wrong.pt", goes_on=True)


@pytest.mark.parametrize("wrong", [7, {"x": torch.ones(1)}], ids=["number", "dict"])
def test_an_evaluation_tells_of_what_is_in_the_place_of_a_weight(saved, tmp_path, wrong):
    state = copy.deepcopy(saved)
    state["model"]["layer.weight"] = wrong
    torch.save(state, tmp_path / "wrong.pt")
    with pytest.raises(CheckpointError, match=rf"layer.weight', {type(wrong).__name__} saved"):
        quiet_trainer(plugins="torch").predict(
            Trained(), DataLoader(batches()[0]), ckpt_path=tmp_path / "wrong.pt"
        )
