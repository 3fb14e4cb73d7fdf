"""Universal checkpoints: made from DeepSpeed's own layout, and going on under every stage and
number of processes.
"""

import functools
import os
import pickle
import shutil
import threading
from contextlib import nullcontext

import pytest
import torch
from click.testing import CliRunner
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from native_runs import CUT, Net, VariedNet, fit, native

from core import CheckpointCorruptedError, CheckpointError, Fabric
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core.checkpoint.upkeep.conversion import convert_checkpoint
from core.cli.commands import command
from core_ddp import DDPStrategy
from core_deepspeed import DeepSpeedStrategy, NativeCheckpointIO, UniversalCheckpointIO
from core_deepspeed.universal_conversion import _kept_by_optimizer
from support.checkpoint_collectives import Alone

# Gradients are added in another order, in float32.
NEAR = {"rtol": 1e-5, "atol": 1e-6}


def load(path):
    return UniversalCheckpointIO().load_checkpoint(path, collectives=Alone())


class Source:
    """A run that has saved in DeepSpeed's own layout, and the universal checkpoint made of that."""

    def __init__(self, folder, stage, num_processes):
        self.native, self.universal = folder / "native", folder / "universal"
        self.losses, self.weights = fit(
            folder, native(stage), num_processes, path=self.native, net=Net
        )
        convert_checkpoint(self.native, self.universal, UniversalCheckpointIO())

    def check(self, losses, weights):
        assert losses == pytest.approx(self.losses, rel=1e-5)
        torch.testing.assert_close(weights, self.weights, **NEAR)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    @functools.cache
    def make(stage, num_processes):
        return Source(tmp_path_factory.mktemp(f"stage_{stage}_"), stage, num_processes)

    return make


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ((1, 2), (2, 1)),
        ((2, 1), (1, 2)),
        ((3, 2), (3, 1)),
        ((3, 2), (1, 2)),
        ((1, 2), (3, 2)),
        ((2, 1), (3, 2)),
    ],
    ids=lambda run: f"stage {run[0]} on {run[1]}",
)
def test_a_run_goes_on_under_another_stage_and_number_of_processes(
    source, tmp_path, writer, reader
):
    stage, num_processes = reader
    before = source(*writer)
    before.check(*fit(tmp_path, native(stage), num_processes, ckpt_path=before.universal))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_all_of_a_run_goes_on_under_another_strategy(tmp_path, stage):
    """Groups, buffers, frozen and tied parameters included, some of which DeepSpeed's own loading
    forgets.
    """
    losses, weights = fit(tmp_path, native(stage), 2, path=tmp_path / "native", net=VariedNet)
    convert_checkpoint(tmp_path / "native", tmp_path / "universal", UniversalCheckpointIO())
    convert_checkpoint(
        tmp_path / "universal",
        tmp_path / "all.pt",
        TorchCheckpointIO(),
        reader=UniversalCheckpointIO(),
    )
    ddp = DDPStrategy(start_method="fork")
    found, resumed = fit(tmp_path, ddp, 2, ckpt_path=tmp_path / "all.pt", net=VariedNet)
    assert found == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(resumed, weights, **NEAR)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_masters_are_carried(tmp_path, stage):
    path = tmp_path / "native"
    fit(tmp_path, native(stage), 2, path=path, net=VariedNet, precision="bf16-mixed")
    convert_checkpoint(path, tmp_path / "universal", UniversalCheckpointIO())
    weights = NativeCheckpointIO().load_checkpoint(path, collectives=Alone())["model"]
    model = load(tmp_path / "universal")["model"]
    torch.testing.assert_close(model, weights, rtol=0, atol=0, check_dtype=False)
    assert (model["layers.0.weight"] != model["layers.0.weight"].bfloat16()).any()


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_itself_loads_them(source, stage):
    """On one process, with `load_universal`."""
    before = source(stage, 2)
    config = {**CUT, "checkpoint": {"load_universal": True}}
    fabric = Fabric(
        accelerator="cpu",
        devices=1,
        strategy=DeepSpeedStrategy(stage, start_method="fork", config=config),
    )
    loaded = fabric.launch(_loaded_by_deepspeed, before.universal)
    torch.testing.assert_close(loaded, load(before.universal)["model"], rtol=0, atol=0)


def _loaded_by_deepspeed(fabric, path):
    net = Net()
    fabric.setup(net, net.configure_optimizers())
    (engine,) = fabric.strategy.engines
    engine.wrapped.load_checkpoint(str(path))
    return fabric.strategy.get_module_state_dict(engine.wrapped, layout="full")


def test_from_the_command_line(source, tmp_path):
    before, target = source(1, 2), tmp_path / "some" / "where"
    done = CliRunner().invoke(
        command,
        ["checkpoint", "convert", str(before.native), str(target), "--to", "deepspeed_universal"],
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{target}: deepspeed_universal\n"
    assert [one.name for one in target.parent.iterdir()] == ["where"]
    assert {one.name for one in target.iterdir()} == {
        "core",
        "core.pt",
        ".core.pt.digest",
        "latest_universal",
    }
    assert threading.enumerate() == [threading.main_thread()], "or nothing could be forked any more"
    UniversalCheckpointIO().remove_checkpoint(target, collectives=Alone())
    assert not target.exists()


def convert(source, target):
    with pytest.raises(CheckpointError) as failure:
        convert_checkpoint(source, target, UniversalCheckpointIO())
    assert not list(target.parent.glob(f"*{target.name}*")), "whole, or not at all"
    return str(failure.value)


def test_what_isn_t_deepspeed_s_is_refused(tmp_path):
    assert "No DeepSpeed checkpoint is at" in convert(tmp_path / "nothing", tmp_path / "universal")
    DistributedCheckpointIO().save_checkpoint(
        {"epoch": 1}, tmp_path / "own.ckpt", collectives=Alone()
    )
    message = convert(tmp_path / "own.ckpt", tmp_path / "universal")
    assert "isn't of DeepSpeed's own layout: expected a folder with the file 'latest'" in message
    assert "deepspeed_checkpoint='native'" in message
    with pytest.raises(
        CheckpointError, match="core checkpoint convert NATIVE TARGET --to deepspeed_universal"
    ):
        UniversalCheckpointIO().save_checkpoint({}, tmp_path / "universal", collectives=Alone())


def test_what_deepspeed_would_leave_out_is_refused(tmp_path):
    class WithMore(Net):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), amsgrad=True)

    fit(tmp_path, native(2), 1, path=tmp_path / "native", net=WithMore)
    assert "Here are ['exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'step']" in convert(
        tmp_path / "native", tmp_path / "universal"
    )


@pytest.mark.nvme
def test_state_on_a_disk_is_refused(tmp_path):
    swap = {"offload_optimizer": True, "offload_optimizer_device": "nvme", "nvme_path": tmp_path}
    fit(tmp_path, native(3, **swap), 1, path=tmp_path / "native")
    assert "on NVMe, of which DeepSpeed makes no universal checkpoint" in convert(
        tmp_path / "native", tmp_path / "universal"
    )


def test_a_path_that_deepspeed_takes_for_a_pattern(source, tmp_path):
    assert "has a '[' in it" in convert(source(1, 2).native, tmp_path / "lr[0.1]")


def test_damage_is_found(source, tmp_path):
    shutil.copytree(source(3, 2).universal, tmp_path / "universal")
    (file,) = tmp_path.glob("universal/*/zero/*layers.0.weight/exp_avg.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointCorruptedError, match=r"exp_avg\.pt' is missing or damaged"):
        load(tmp_path / "universal")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(
        CheckpointCorruptedError, match=r"exp_avg\.pt' is missing or damaged: no file is there"
    ):
        load(tmp_path / "universal")
    (tmp_path / "universal" / "core.pt").unlink()
    with pytest.raises(CheckpointError, match=r"has no file 'core\.pt'.* core hasn't made it"):
        load(tmp_path / "universal")
    with pytest.raises(CheckpointError, match="No DeepSpeed checkpoint"):
        load(tmp_path)


def universal(folder, beside):
    """A folder with `core.pt` alone."""
    (folder / "core").mkdir(parents=True)
    (folder / "latest_universal").write_text("core")
    TorchCheckpointIO().save_checkpoint(beside, folder / "core.pt", collectives=Alone())
    return folder


MARK = {"in DeepSpeed's files": True}


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"rest": {"model": MARK}, "module": {"w": "../../w"}, "shapes": {}, "steps": {}},
        {"rest": {"model": MARK}, "module": 3, "shapes": {}, "steps": {}},
        {
            "rest": {"optimizer": {**MARK, "param_groups": 3}},
            "module": {},
            "shapes": {},
            "steps": {},
        },
    ],
)
def test_what_core_has_not_written_beside_is_refused(tmp_path, beside):
    with pytest.raises(CheckpointCorruptedError, match=r"core\.pt' is not what core has written"):
        load(universal(tmp_path / "universal", beside))


WHOLE = {"rest": {"model": MARK}, "module": {"w": "w"}, "shapes": {"w": [3]}, "steps": {}}


class ByCall:
    """Pickles as a call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    "saved",
    [
        [1.0],
        {"param": 3},
        torch.zeros(4),
        torch.arange(3),
        ByCall(os.system, ("exit 1",)),
    ],
)
def test_what_deepspeed_has_not_written_is_named_and_not_called(tmp_path, saved):
    folder = universal(tmp_path / "universal", WHOLE)
    (folder / "core" / "zero" / "w").mkdir(parents=True)
    torch.save({"param": torch.arange(3.0)}, folder / "core" / "zero" / "w" / "fp32.pt")
    assert load(folder)["model"]["w"].tolist() == [0, 1, 2]
    torch.save(saved, folder / "core" / "zero" / "w" / "fp32.pt")
    with pytest.raises(CheckpointCorruptedError, match=r"fp32\.pt' is"):
        load(folder)


@pytest.mark.parametrize(
    "content", [{"module": 3}, {"module": {}, "param_shapes": 3}, {"module": {"w": 3}}]
)
def test_a_file_of_the_module_that_deepspeed_has_not_written_is_named(source, tmp_path, content):
    shutil.copytree(source(1, 2).native, tmp_path / "native")
    (file,) = (tmp_path / "native").glob("*/mp_rank_00_model_states.pt")
    saved = torch.load(file, weights_only=False)
    torch.save({**{key: value for key, value in saved.items() if key != "core"}, **content}, file)
    with pytest.raises(CheckpointError, match="native"):
        NativeCheckpointIO().load_checkpoint(tmp_path / "native", collectives=Alone())
    assert "native" in convert(tmp_path / "native", tmp_path / "universal")


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "", "..", "a" * 300 + "/"])
def test_a_folder_elsewhere_is_not_read(tmp_path, name):
    folder = universal(tmp_path / "universal", {})
    (folder / "latest_universal").write_text(name)
    with pytest.raises(
        CheckpointCorruptedError, match=r"latest_universal' holds .* the name of a folder"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("found", "is_read"), [((ZeroStageEnum, "weights"), True), ((LossScaler, "__init__"), False)]
)
def test_members_of_enums_are_read_whichever_python_has_written_them(tmp_path, found, is_read):
    """Python 3.11.0 to 3.11.3 pickles them as calls of getattr."""
    state = {"base_optimizer_state": {"state": {}}, "found": ByCall(getattr, found)}
    torch.save({"optimizer_state_dict": state}, tmp_path / "states.pt")
    expected = nullcontext() if is_read else pytest.raises(pickle.UnpicklingError, match="no enum")
    with expected:
        assert _kept_by_optimizer(tmp_path / "states.pt", 0) == []
