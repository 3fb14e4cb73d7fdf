"""Folders in Colossal-AI's layout that somebody else has made: what is wrong in them is named."""

import json
import os

import pytest
import torch

from core import CheckpointCorruptedError
from core.checkpoint import TorchCheckpointIO
from core_colossalai import ColossalAICheckpointIO
from support.checkpoint_collectives import Alone

INSIDE = "in Colossal-AI's files"
MODEL = {INSIDE: "modeling", "names": {}}
OPTIMIZER = {INSIDE: "optimizer", "names": ["w"], "param_groups": []}
GOOD = {
    "weights": {"w": torch.arange(3.0)},
    "index": {"weight_map": {"w": "one.bin"}},
    "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": []},
    "rest": {"model": MODEL, "optimizer": OPTIMIZER},
}


class Pickled:
    """Pickled as a call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def load(folder, **others):
    """The state of a folder with something else at some places."""
    content = {**GOOD, **others}
    (folder / "modeling").mkdir()
    torch.save(content["weights"], folder / "modeling" / "one.bin")
    index = folder / "modeling" / "pytorch_model.bin.index.json"
    os.mkfifo(index) if content["index"] is os.mkfifo else index.write_text(
        content["index"] if isinstance(content["index"], str) else json.dumps(content["index"])
    )
    torch.save(content["optimizer"], folder / "optimizer")
    TorchCheckpointIO().save_checkpoint(content["rest"], folder / "core.pt", collectives=Alone())
    return ColossalAICheckpointIO().load_checkpoint(folder, collectives=Alone())


def test_what_is_right_is_read(tmp_path):
    state = load(tmp_path)
    assert state["model"]["w"].tolist() == [0, 1, 2]
    assert state["optimizer"]["state"]["w"]["step"] == 1


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ({"weights": {"w": torch.zeros(1).expand(1 << 40)}}, "one.bin"),
        ({"weights": {"w": torch.zeros(3, device="meta")}}, "one.bin"),
        ({"weights": Pickled(os.system, ("exit 1",))}, "one.bin"),
        ({"weights": {"w": [1.0]}}, "index.json"),
        ({"weights": {}}, "index.json"),
        ({"weights": [1.0]}, "index.json"),
        ({"index": []}, "index.json"),
        ({"index": {"weight_map": 3}}, "index.json"),
        ({"index": {"weight_map": {"w": ["one.bin"]}}}, "index.json"),
        ({"index": {"weight_map": {"w": "../optimizer"}}}, "index.json"),
        ({"index": "[" * 100_000}, "index.json"),
        ({"index": os.mkfifo}, "index.json"),
        ({"optimizer": []}, "optimizer"),
        ({"optimizer": {"state": {7: {}}}}, "optimizer"),
        ({"optimizer": {"state": {0: 3}}}, "optimizer"),
        ({"optimizer": {"state": [1]}}, "optimizer"),
        ({"rest": {"model": {INSIDE: "modeling"}}}, "core.pt"),
        ({"rest": {"model": {**MODEL, "names": 3}}}, "core.pt"),
        ({"rest": {"model": {**MODEL, INSIDE: "../modeling"}}}, "core.pt"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, others, place):
    with pytest.raises(CheckpointCorruptedError, match=place) as failure:
        load(tmp_path, **others)
    assert len(str(failure.value)) < 1000
