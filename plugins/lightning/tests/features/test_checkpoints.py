import os
from datetime import timedelta

import pytest
import torch


@pytest.mark.parametrize(
    ("options", "trainer", "expected"),
    [
        ({}, {}, "epoch=2-step=12.ckpt"),
        ({"filename": "{epoch:02d}-{val:.2f}", "monitor": "val"}, {}, "epoch=00-val=1.00.ckpt"),
        (
            {"filename": "x{step}_{val:.1f}", "monitor": "val", "auto_insert_metric_name": False},
            {},
            "x4_1.0.ckpt",
        ),
        (
            {"filename": "{epoch}", "monitor": "val", "mode": "max", "save_top_k": 2},
            {},
            "epoch=1.ckpt epoch=2.ckpt",
        ),
        (
            {"every_n_train_steps": 4, "save_top_k": -1},
            {"accumulate_grad_batches": 2},
            "epoch=1-step=4.ckpt",
        ),
        (
            {"every_n_epochs": 2, "save_top_k": -1},
            {"max_epochs": 5},
            "epoch=1-step=8.ckpt epoch=3-step=16.ckpt",
        ),
        ({"save_on_train_epoch_end": False}, {"check_val_every_n_epoch": 2}, "epoch=1-step=8.ckpt"),
        ({"train_time_interval": timedelta(hours=1)}, {}, ""),
        ({"save_last": True, "save_top_k": 0}, {}, "last.ckpt"),
    ],
)
def test_files(lit, options, trainer, expected):
    kept = lit.pl.callbacks.ModelCheckpoint(dirpath="kept", **options)
    lit.fit(
        lit.Rising(), callbacks=[kept], **{"enable_checkpointing": True, "max_epochs": 3, **trainer}
    )
    assert sorted(os.listdir("kept") if os.path.isdir("kept") else []) == expected.split()


def test_sections(lit):
    trainer = lit.fit(lit.Plain())
    trainer.save_checkpoint("whole.ckpt")
    trainer.save_checkpoint("light.ckpt", weights_only=True)
    whole, light = (torch.load(name, weights_only=False) for name in ("whole.ckpt", "light.ckpt"))
    assert {
        "epoch",
        "global_step",
        "state_dict",
        "optimizer_states",
        "lr_schedulers",
    } <= whole.keys()
    assert {"optimizer_states", "lr_schedulers"}.isdisjoint(light)
    assert (whole["epoch"], whole["global_step"], "state_dict" in light) == (2, 8, True)


def test_hyperparameters(lit):
    class Saving(lit.Plain):
        def __init__(self, width=3, *, ignored=None, **more):
            super().__init__()
            self.save_hyperparameters(ignore=["ignored"])
            self.save_hyperparameters({"extra": 1})

    net = Saving(4, ignored=torch.nn.ReLU(), other=5)
    lit.fit(net, max_epochs=1).save_checkpoint("a.ckpt")
    assert (net.hparams, net.hparams.width) == ({"width": 4, "other": 5, "extra": 1}, 4)
    assert Saving.load_from_checkpoint("a.ckpt", width=9).hparams == {
        "width": 9,
        "other": 5,
        "extra": 1,
    }


def test_a_data_module(lit):
    class Data(lit.pl.LightningDataModule):
        def __init__(self, size=2):
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self):
            return lit.load(self.hparams.size)

    trainer = lit.make_trainer(max_epochs=1)
    trainer.fit(lit.Plain(), datamodule=Data(4))
    trainer.save_checkpoint("a.ckpt")
    assert Data.load_from_checkpoint(checkpoint_path="a.ckpt", map_location="cpu").hparams == {
        "size": 4
    }
    assert Data.load_from_checkpoint("a.ckpt", size=8).hparams == {"size": 8}


def test_a_quick_run_has_its_callback_and_no_file(lit):
    trainer = lit.fit(lit.Plain(), fast_dev_run=2, enable_checkpointing=True)
    assert (trainer.fast_dev_run, trainer.max_epochs, trainer.num_val_batches) == (2, 1, [2])
    assert (trainer.global_step, trainer.checkpoint_callback.best_model_path) == (2, "")
