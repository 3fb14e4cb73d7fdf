"""Averages of weights that ZeRO spreads: those of one device, and under any other strategy."""

import functools

import pytest
import torch
import zero_ranks
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from zero_ranks import STAGES

from core import Module, WorkerError
from core.callbacks import EMA, Callback, ModelCheckpoint, StochasticWeightAveraging


class Net(Module):
    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 7), norm, nn.Tanh(), nn.Linear(7, 3))
        self.frozen = nn.Linear(3, 1).requires_grad_(False)

    def forward(self, inputs):
        return self.frozen(self.layers(inputs))

    def training_step(self, batch):
        self.layers[1].eval()  # statistics are each rank's own
        return functional.mse_loss(self(batch[0]), batch[0].sum(1, keepdim=True).sin())

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=0.02)


def fit(rank, make_callback, *, ckpt_path=None, folder=None, storage="distributed", **options):
    """Weights in the end, and the loss of the last validation run."""
    callbacks = [make_callback()]
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, "{epoch}", save_top_k=-1))
    # BatchNorm on a CPU takes one number format only.
    module = Net(
        nn.BatchNorm1d(7, momentum=None) if "precision" not in options else nn.LayerNorm(7)
    )
    data = TensorDataset(torch.randn(32, 5, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)
    options = {
        "max_epochs": 2,
        "num_sanity_val_steps": 0,
        "plugins": [rank.environment, storage],
        **options,
    }
    trainer = rank.trainer(callbacks=callbacks, **options)
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path)
    loss = trainer.callback_metrics["loss"]
    return {
        **{name: value.float() for name, value in module.state_dict().items()},
        "loss": torch.as_tensor(loss).cpu(),
    }


def on_one_device(*args, **options):
    return zero_ranks.on_one_device(functools.partial(fit, **options), *args)


def on_two_ranks(stage, *args, strategy=None, **options):
    return zero_ranks.on_two_ranks(
        functools.partial(fit, **options), *args, stage=stage, **(strategy or {})
    )


def assert_close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


average_of_steps = functools.partial(EMA, 0.5)


@pytest.mark.parametrize(
    ("stage", "offload"),
    [(0, False), (2, False), (3, True)],
)
def test_the_average_of_every_step_is_that_of_one_device(stage, offload):
    expected = on_one_device(average_of_steps)
    for found in on_two_ranks(stage, average_of_steps, strategy={"offload_optimizer": offload}):
        assert_close(found, expected)
    without = on_one_device(Callback)
    assert not torch.equal(expected["layers.0.weight"], without["layers.0.weight"])
    assert expected["loss"] != without["loss"], "validation runs use the average"


@STAGES
def test_in_16_bits_masters_are_averaged(stage):
    expected = on_one_device(average_of_steps, precision="32-true")
    for found in on_two_ranks(stage, average_of_steps, precision="bf16-mixed"):
        assert_close(found, expected, tolerance=3e-2)
        weights = found["layers.0.weight"]
        assert not torch.equal(weights, weights.bfloat16().float()), (
            "of masters, in more than 16 bits"
        )


@STAGES
def test_the_average_of_epochs_is_that_of_one_device(stage):
    average_of_epochs = functools.partial(StochasticWeightAveraging, 0.05, 0)
    expected = on_one_device(average_of_epochs)
    # of whole batches, and elsewhere the mean of those of their halves
    variance = expected.pop("layers.1.running_var")
    for found in on_two_ranks(stage, average_of_epochs):
        assert not torch.equal(found.pop("layers.1.running_var"), torch.ones_like(variance))
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("storage", "writer", "reader"),
    [("distributed", 3, 1), ("torch", 3, None), ("torch", None, 3), ("torch", 2, 3)],
)
def test_the_average_goes_on_elsewhere(tmp_path, storage, writer, reader):
    def run(stage, **options):
        if stage is None:
            return on_one_device(average_of_steps, storage=storage, **options)
        return on_two_ranks(stage, average_of_steps, storage=storage, **options)[0]

    run(writer, folder=tmp_path, max_epochs=1, enable_checkpointing=True)
    assert_close(run(reader, ckpt_path=tmp_path / "epoch=0.ckpt"), on_one_device(average_of_steps))


@pytest.mark.nvme
def test_masters_on_a_disk_are_refused(tmp_path):
    offload = {"offload_optimizer": True, "offload_optimizer_device": "nvme", "nvme_path": tmp_path}
    with pytest.raises(
        WorkerError, match="DeepSpeedStrategy with these options gives copies of them"
    ):
        on_two_ranks(3, average_of_steps, strategy=offload)
