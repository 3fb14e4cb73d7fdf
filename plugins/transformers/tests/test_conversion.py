"""Checkpoints of any strategy become folders for `from_pretrained`, a tensor at a time."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("transformers")

from transformers_models import MODELS, assert_alike, make, tensors, tune

from core import CheckpointError, Fabric
from core.checkpoint import DistributedCheckpointIO
from core.cli.commands import command
from core_testing.ranks import Backend
from core_transformers import config_of, from_config, load_pretrained

pytestmark = pytest.mark.slow


def convert(*arguments):
    """Run `core checkpoint convert ... --as transformers`: the message of its error, or nothing."""
    done = CliRunner().invoke(
        command, ["checkpoint", "convert", *map(str, arguments), "--as", "transformers"]
    )
    return " ".join(done.output.split()) if done.exit_code else ""


@pytest.mark.parametrize("name", ["dense", "tied", "mixture"])
@pytest.mark.parametrize("strategy", ["single_device", "fsdp"])
def test_a_checkpoint_of_a_run_becomes_what_is_saved_of_it(tmp_path, name, strategy):
    make(name, tmp_path / "first")
    Backend(lambda: strategy, num_processes=1 + (strategy == "fsdp")).run(tune, tmp_path, name)
    assert not convert(tmp_path / "last.ckpt", tmp_path / "converted" / name)
    assert_alike(tmp_path / "saved", tmp_path / "converted", name)


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a Fabric, by the form's alias, and the model's folder beside it."""

    def save(form, **state):
        make("experts", tmp_path / "first")
        fabric = Fabric(accelerator="cpu", plugins=form)
        model = fabric.setup_module(from_config(fabric, tmp_path / "first", MODELS["experts"][2]))
        load_pretrained(fabric, model, tmp_path / "first")
        fabric.save(
            tmp_path / "run" / "last.ckpt", {"student": model, "of": config_of(model), **state}
        )
        fabric.teardown()
        return tmp_path / "run" / "last.ckpt"

    return save


@pytest.mark.parametrize("form", ["distributed", "torch"])
def test_a_checkpoint_is_read_a_unit_at_a_time(saved, tmp_path, form, monkeypatch):
    path = saved(form)
    asked = []
    load = DistributedCheckpointIO.load_checkpoint

    def seen(self, path, *, collectives, state=None):
        asked.append(
            {
                name
                for name, leaf in (state or {})["student"].items()
                if isinstance(leaf, torch.Tensor)
            }
        )
        return load(self, path, collectives=collectives, state=state)

    monkeypatch.setattr("core_transformers.checkpoint_io._AT_ONCE_BYTES", 1)
    monkeypatch.setattr(DistributedCheckpointIO, "load_checkpoint", seen)
    assert not convert(path, tmp_path / "second")
    own, first = tensors(tmp_path / "second"), tensors(tmp_path / "first")
    assert own.keys() == first.keys()
    assert not [name for name in first if not torch.equal(own[name], first[name])]
    # mapped
    assert (len(asked) > 10 and max(map(len, asked)) <= 2) if form == "distributed" else not asked


def test_a_config_beside_the_checkpoint_does_as_well(saved, tmp_path):
    path = saved("distributed", of=None)
    assert "doesn't say of which model of transformers it is" in convert(path, tmp_path / "second")
    shutil.copy(tmp_path / "first" / "config.json", path.parent)
    assert not convert(path, tmp_path / "second")
    config = json.loads((path.parent / "config.json").read_text())
    (path.parent / "config.json").write_text(json.dumps(config | {"vocab_size": 65}))
    assert "found them nowhere" in convert(path, tmp_path / "third")
    (path.parent / "config.json").write_text(json.dumps(config | {"architectures": ["Mine"]}))
    assert "names the class 'Mine', which transformers" in convert(path, tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_no_run_goes_on_from_such_a_folder(tmp_path):
    make("dense", tmp_path / "first")
    fabric = Fabric(accelerator="cpu", plugins="transformers")
    model = fabric.setup_module(torch.nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="isn't a checkpoint from which a run goes on"):
        fabric.save(tmp_path / "last.ckpt", {"model": model})
    with pytest.raises(
        CheckpointError, match=r"holds weights of transformers\. Load them by load_pretrained"
    ):
        fabric.load(tmp_path / "first", {"model": model})
    fabric.teardown()
