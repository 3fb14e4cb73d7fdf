"""DeepSpeed's own layout: written and read by its engine, and turned into one that every strategy
reads.
"""

import pytest
import torch
from native_runs import fit, native

from core import CheckpointCorruptedError, CheckpointError, WorkerError
from core.checkpoint import TorchCheckpointIO, load_checkpoint
from core.checkpoint.upkeep.conversion import convert_checkpoint
from core_deepspeed import NativeCheckpointIO


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_goes_on_and_its_weights_come_out(tmp_path, stage):
    path = tmp_path / "native"
    expected, weights = fit(tmp_path, native(stage), 2, path=path)
    found, resumed = fit(tmp_path, native(stage), 2, ckpt_path=path)
    assert found == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(resumed, weights, rtol=1e-5, atol=1e-6)

    convert_checkpoint(
        path, tmp_path / "weights.pt", TorchCheckpointIO(), reader=NativeCheckpointIO()
    )
    model = load_checkpoint(tmp_path / "weights.pt")["model"]
    assert sorted(model) == sorted(weights)
    assert {value.dtype for value in model.values()} == {torch.float32}

    with pytest.raises(Exception, match="the number of processes that have written it") as failure:
        fit(tmp_path, native(stage), 1, ckpt_path=path)
    assert CheckpointError.__name__ in repr(failure.value) + str(failure.value)

    with pytest.raises(
        WorkerError,
        match=r"can't load .*: AssertionError in check_ckpt_list, 'assert len.* Its own",
    ):
        fit(tmp_path, native(5 - stage), 2, ckpt_path=path)

    told = (
        r"no checkpoint of core, .* DeepSpeed's. `core checkpoint convert --from "
        rf"deepspeed_native '{path}' TARGET`"
    )
    with pytest.raises(CheckpointCorruptedError, match=told):
        load_checkpoint(path)
    with pytest.raises(
        CheckpointCorruptedError, match="Name the folder around it, with the file 'latest'"
    ):
        load_checkpoint(path / "core")


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="No DeepSpeed checkpoint"):
        convert_checkpoint(
            tmp_path / "nothing",
            tmp_path / "weights.pt",
            TorchCheckpointIO(),
            reader=NativeCheckpointIO(),
        )


def test_what_deepspeed_itself_has_written_at_stage_0_is_read(tmp_path):
    weights = {"layer.weight": torch.ones(2, dtype=torch.bfloat16)}
    (tmp_path / "native" / "global_step3").mkdir(parents=True)
    (tmp_path / "native" / "latest").write_text("global_step3")
    saved = {
        "module": weights,
        "param_shapes": None,
        "frozen_param_shapes": None,
        "shared_params": None,
    }
    torch.save(saved, tmp_path / "native" / "global_step3" / "mp_rank_00_model_states.pt")
    convert_checkpoint(
        tmp_path / "native",
        tmp_path / "weights.pt",
        TorchCheckpointIO(),
        reader=NativeCheckpointIO(),
    )
    model = load_checkpoint(tmp_path / "weights.pt")["model"]
    assert torch.equal(model["layer.weight"], torch.ones(2))
    with pytest.raises(CheckpointCorruptedError, match="--from deepspeed_native"):
        load_checkpoint(tmp_path / "native")
