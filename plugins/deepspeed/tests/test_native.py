"""DeepSpeed's own layout: written and read by its engine, and turned into one that every strategy reads."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import CheckpointError, Module, Trainer
from core.checkpoint import load_checkpoint
from core.checkpoint.conversion import convert_checkpoint
from core_deepspeed import DeepSpeedStrategy, NativeCheckpointIO

QUIET = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


class Net(Module):
    """Notes its losses, and saves after the third step."""

    def __init__(self, path=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
        self.register_buffer("scale", torch.tensor(1.5))
        self.path, self.losses = path, []

    def training_step(self, batch, batch_idx):
        return (self.layers(batch[0]) * self.scale - batch[1]).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(self.trainer.strategy.reduce(outputs).item())
        if self.path is not None and self.trainer.global_step == 3:
            self.trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["losses"] = list(self.losses)

    def on_load_checkpoint(self, checkpoint):
        self.losses = checkpoint["losses"]

    def on_train_end(self):
        if self.trainer.is_global_zero:
            torch.save(self.losses, self.losses_file)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit(tmp_path, stage, num_processes, *, path=None, ckpt_path=None):
    module = Net(path)
    module.losses_file = tmp_path / "losses"
    strategy = DeepSpeedStrategy(
        stage, start_method="fork", deepspeed_checkpoint="native", config=CUT if stage == 3 else None
    )
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=num_processes, max_epochs=1, **QUIET)
    inputs = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=8 // num_processes)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return torch.load(module.losses_file), module.state_dict()


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_goes_on_and_its_weights_come_out(tmp_path, stage):
    path = tmp_path / "native"
    expected, weights = fit(tmp_path, stage, 2, path=path)
    found, resumed = fit(tmp_path, stage, 2, ckpt_path=path)
    assert found == pytest.approx(expected, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-5, atol=1e-6)

    convert_checkpoint(path, tmp_path / "weights.pt", "torch", reader=NativeCheckpointIO())
    model = load_checkpoint(tmp_path / "weights.pt")["model"]
    assert sorted(model) == sorted(weights)
    assert {value.dtype for value in model.values()} == {torch.float32}

    with pytest.raises(Exception, match="the number of processes that have written it") as failure:
        fit(tmp_path, stage, 1, ckpt_path=path)
    assert CheckpointError.__name__ in repr(failure.value) + str(failure.value)


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="No checkpoint of DeepSpeed's"):
        convert_checkpoint(tmp_path / "nothing", tmp_path / "weights.pt", "torch", reader=NativeCheckpointIO())
