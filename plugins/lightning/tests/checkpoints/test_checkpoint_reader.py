"""Files of PyTorch Lightning with objects of other classes inside: what can be read is, and nothing
is executed.
"""

import collections
import os
import sys
import types
from collections import OrderedDict

import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint

from core.checkpoint import load_checkpoint
from core.contract import CheckpointCorruptedError
from core_testing import programs


@pytest.fixture
def classes():
    """Of a program that isn't installed where the file is read."""
    module = sys.modules["their_project"] = types.ModuleType("their_project")
    module.Config = type("Config", (), {"__module__": module.__name__})
    module.AttributeDict = type("AttributeDict", (dict,), {"__module__": module.__name__})
    yield module
    sys.modules.pop(module.__name__, None)


def lightning(**sections):
    return {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": OrderedDict(weight=torch.ones(2)),
        "epoch": 1,
        "global_step": 3,
        **sections,
    }


def read(saved, path):
    torch.save(saved, path)
    sys.modules.pop("their_project", None)
    return load_checkpoint(path)


def test_objects_are_left_out_and_named(classes, tmp_path):
    saved = lightning(
        hyper_parameters={
            "width": 4,
            "config": classes.Config(),
            "activation": classes.Config,
            "deep": [1, {2: [3]}],
        },
        callbacks={"Theirs": classes.Config()},
        optimizer_states=[
            {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        ],
        mine={
            "kept": 5,
            "list": [1, classes.Config()],
            "counts": collections.defaultdict(int, a=1),
        },
    )
    with pytest.warns(UserWarning, match="left out, since nothing in a file is executed") as caught:
        state = read(saved, tmp_path / "their.ckpt")
    (report,) = (str(warning.message) for warning in caught if "left out" in str(warning.message))
    for place in (
        "hyper_parameters['config']",
        "hyper_parameters['activation']",
        "mine['list'][1]",
    ):
        assert f"{place} (their_project.Config)" in report
    assert "Read without them: pytorch-lightning_version, state_dict" in report
    assert "callbacks" not in report, "they are never read"
    assert torch.equal(state["model"]["weight"], torch.ones(2))
    assert state["hyper_parameters"] == {"width": 4, "deep": [1, {2: [3]}]}
    assert state["module_section"] == {"mine": {"kept": 5, "counts": {"a": 1}}}
    assert state["progress"]["global_step"] == 3
    assert "their_project" not in sys.modules


def test_what_is_never_read_is_not_needed(tmp_path):
    less = {"state_dict": {}, "optimizer_states": []}
    more = {
        **less,
        "callbacks": ["junk"],
        "hparams_type": ["junk"],
        "datamodule_hparams_type": ["junk"],
    }
    assert read(lightning(**more), tmp_path / "more.ckpt") == read(
        lightning(**less), tmp_path / "less.ckpt"
    )


def test_hyperparameters_in_a_dict_of_its_own_class_are_read(classes, tmp_path):
    state = read(
        lightning(hyper_parameters=classes.AttributeDict(width=4)), tmp_path / "their.ckpt"
    )
    assert state["hyper_parameters"] == {"width": 4}


def test_nothing_is_executed(tmp_path):
    flag = tmp_path / "executed"

    class Runs:
        """Runs a program when it is unpickled."""

        def __init__(self, program):
            self.program = program

        def __reduce__(self):
            return exec, (self.program,)

    runs = Runs(f"open({str(flag)!r}, 'w').close()")
    with pytest.warns(UserWarning, match=r"hyper_parameters\['x'\] \(builtins\.exec\)"):
        state = read(lightning(hyper_parameters={"x": runs}), tmp_path / "their.ckpt")
    assert state["hyper_parameters"] == {}
    assert not flag.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_sharded_checkpoint_is_named_with_the_commands(tmp_path):
    path = tmp_path / "sharded.ckpt"
    torch_checkpoint.save({"model": {"weight": torch.ones(2)}}, checkpoint_id=path, no_dist=True)
    torch.save(lightning(), path / "meta.pt")
    with pytest.raises(
        CheckpointCorruptedError, match="no checkpoint of core, and nothing of it was damaged"
    ) as told:
        load_checkpoint(path)
    assert (
        f"Lightning's. `python -m lightning.pytorch.utilities.consolidate_checkpoint '{path}'`"
        in str(told.value)
    )
    assert (
        f"`python -m torch.distributed.checkpoint.format_utils dcp_to_torch '{path}' '{path}.pt'`"
        in str(told.value)
    )


def test_another_program_is_refused_as_before(classes, tmp_path):
    with pytest.raises(
        CheckpointCorruptedError, match=r"their_project\.Config was not an allowed global"
    ):
        read({"state_dict": {}, "config": classes.Config()}, tmp_path / "other.ckpt")


def test_without_the_plugin_the_error_says_what_to_install(tmp_path):
    path = tmp_path / "lightning.ckpt"
    torch.save({"epoch": 0, "pytorch-lightning_version": "2.6.6", "state_dict": {}}, path)
    program = "from core.checkpoint import load_checkpoint; load_checkpoint('lightning.ckpt')"
    done = programs.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"CORE_DISABLE_PLUGINS": "core-lightning"},
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "'lightning.ckpt' was saved by PyTorch Lightning, and is read by a plugin." in last
    assert "CORE_DISABLE_PLUGINS" in last
