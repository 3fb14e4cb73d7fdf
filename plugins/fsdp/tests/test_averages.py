"""Averages of weights in shards: those of one device, in checkpoints of either layout and under
another strategy.
"""

import functools

import pytest
import torch

from core import Callback, Trainer
from core.callbacks import EMA, ModelCheckpoint
from core_fsdp import FSDPStrategy, ModelParallelStrategy
from support.sharded_training import CASES, QUIET, Block, Net, make_loader

fork = {"start_method": "fork", "auto_wrap_policy": {Block}}
WAYS = {
    "single_device": (lambda: "single_device", 1, 1),
    "fsdp": (functools.partial(FSDPStrategy, **fork), 2, 2),
    "tensor": (functools.partial(ModelParallelStrategy, **fork, tensor_parallel_size=2), 2, 1),
}


class Judged(Net):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.training_step(batch, batch_idx))


def fit(way, callback, *others, ckpt_path=None, **options):
    """Weights in the end, and the loss of the last validation run."""
    make, devices, data_parallel_size = WAYS[way]
    module, loader = Judged(CASES["tied"]), make_loader(data_parallel_size)
    options = {
        **QUIET,
        "precision": "64-true",
        "max_epochs": 2,
        "limit_train_batches": 4,
        "limit_val_batches": 2,
        **options,
    }
    trainer = Trainer(**options, strategy=make(), devices=devices, callbacks=[callback, *others])
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path)
    return {
        **module.state_dict(),
        "loss": torch.as_tensor(trainer.callback_metrics["loss"]).double(),
    }


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", ["fsdp", "tensor"])
def test_the_average_of_every_step_is_that_of_one_device(way):
    expected = fit("single_device", EMA(0.5))
    assert_equal(fit(way, EMA(0.5)), expected)
    without = fit("single_device", Callback())
    assert not torch.equal(expected["head.weight"], without["head.weight"])
    assert expected["loss"] != without["loss"], "validation runs use the average"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "writer", "reader"),
    [
        ("distributed", "fsdp", "tensor"),
        ("torch", "tensor", "single_device"),
    ],
)
def test_the_average_goes_on_under_another_strategy(tmp_path, storage, writer, reader):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    fit(writer, EMA(0.5), saver, max_epochs=1, plugins=storage, enable_checkpointing=True)
    found = fit(reader, EMA(0.5), ckpt_path=tmp_path / "epoch=0.ckpt", plugins=storage)
    assert_equal(found, fit("single_device", EMA(0.5)))
