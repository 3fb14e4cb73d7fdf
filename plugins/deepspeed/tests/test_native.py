"""DeepSpeed's own layout: written and read by its engine, and turned into one that every strategy reads."""

import pytest
import torch
from native_runs import fit, native

from core import CheckpointError
from core.checkpoint import TorchCheckpointIO, load_checkpoint
from core.checkpoint.upkeep.conversion import convert_checkpoint
from core_deepspeed import NativeCheckpointIO


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_goes_on_and_its_weights_come_out(tmp_path, stage):
    path = tmp_path / "native"
    expected, weights = fit(tmp_path, native(stage), 2, path=path)
    found, resumed = fit(tmp_path, native(stage), 2, ckpt_path=path)
    assert found == pytest.approx(expected, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-5, atol=1e-6)

    convert_checkpoint(path, tmp_path / "weights.pt", TorchCheckpointIO(), reader=NativeCheckpointIO())
    model = load_checkpoint(tmp_path / "weights.pt")["model"]
    assert sorted(model) == sorted(weights)
    assert {value.dtype for value in model.values()} == {torch.float32}

    with pytest.raises(Exception, match="the number of processes that have written it") as failure:
        fit(tmp_path, native(stage), 1, ckpt_path=path)
    assert CheckpointError.__name__ in repr(failure.value) + str(failure.value)


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="No DeepSpeed checkpoint"):
        convert_checkpoint(
            tmp_path / "nothing", tmp_path / "weights.pt", TorchCheckpointIO(), reader=NativeCheckpointIO()
        )
