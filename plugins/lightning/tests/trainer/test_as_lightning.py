"""Programs that count on what Lightning does, with what Lightning 2.6.6 and torch 2.13.0 gave for
them.
"""

import copy

import pytest
import torch
from torch.utils.data import DataLoader

from core_testing import in_one_process


@pytest.mark.numbers
def test_fabric_shuffles_as_under_lightning_on_one_device(installed):
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(1)
    loader = fabric.setup_dataloaders(DataLoader(torch.arange(6), batch_size=3, shuffle=True))
    assert [batch.tolist() for _ in range(2) for batch in loader] == [
        [0, 1, 4],
        [3, 2, 5],
        [4, 2, 0],
        [5, 1, 3],
    ]


def test_a_checkpoints_epoch_is_the_one_that_runs_until_its_last_hooks_are_through(lit):
    class Saving(lit.pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            trainer.save_checkpoint(f"start{trainer.current_epoch}.ckpt")

        def on_train_epoch_end(self, trainer, module):
            trainer.save_checkpoint(f"end{trainer.current_epoch}.ckpt")

    trainer = lit.fit(lit.Plain(), callbacks=[Saving()], val=False, enable_checkpointing=True)
    trainer.save_checkpoint("after.ckpt")
    names = {"start0": 0, "end0": 0, "start1": 1, "end1": 1, "after": 2}
    paths = {
        trainer.checkpoint_callback.best_model_path: 1,
        **{f"{name}.ckpt": epoch for name, epoch in names.items()},
    }
    for path, epoch in paths.items():
        saved = torch.load(path, weights_only=True)
        assert (
            saved["epoch"],
            saved["loops"]["fit_loop"]["epoch_progress"]["total"]["completed"],
        ) == (epoch, epoch)


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        ("batch", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("epoch", [[[[0, 1, 2], [3, 4, 5], [6, 7]]]]),
        ("batch_and_epoch", [[0, 1, 2], [3, 4, 5], [6, 7], [[[0, 1, 2], [3, 4, 5], [6, 7]]]]),
    ],
)
def test_prediction_writers_know_the_indices_on_one_device(lit, interval, told):
    found = []

    class Writer(lit.pl.callbacks.BasePredictionWriter):
        def write_on_batch_end(
            self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx
        ):
            found.append(batch_indices)

        def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
            found.append(batch_indices)

    writer = Writer(interval)
    assert len(lit.make_trainer(callbacks=[writer]).predict(lit.Plain(), lit.load(3))) == 3
    assert found == told
    assert (writer.interval.on_batch, writer.interval.on_epoch) == (
        "batch" in interval,
        "epoch" in interval,
    )


def test_the_callbacks_are_the_users_and_the_defaults(lit):
    mine, kind = lit.pl.Callback(), lit.pl.callbacks.ModelCheckpoint
    trainer = lit.make_trainer(callbacks=mine, enable_checkpointing=True)
    assert [type(each) for each in trainer.callbacks] == [type(mine), kind]
    assert trainer.checkpoint_callback is trainer.callbacks[1]
    own = kind(save_top_k=0)
    assert lit.make_trainer(callbacks=[own], enable_checkpointing=True).callbacks == [own]
    assert lit.make_trainer().callbacks == []
    assert lit.pl.Trainer(barebones=True, accelerator="cpu").callbacks == []


def test_the_wrapper_is_in_evaluation_mode_while_the_module_is(lit):
    pytest.importorskip("core_ddp")

    class Net(lit.Plain):
        def validation_step(self, batch, batch_idx):
            self.modes = (self.trainer.model.training, self.training, self.trainer.model is self)

    net = Net()
    in_one_process(lambda: lit.fit(net, strategy="ddp"), ranks=1)
    assert (net.modes, net.training) == ((False, False, False), True)


def test_a_weight_that_a_step_uses_twice_adds_up_its_gradients_in_float32(lit):
    net, gradients = lit.Plain(), []
    small = 2.0**-9  # too small to change 1 in bfloat16
    net.training_step = lambda *_: sum(
        net.layers(torch.full((1, 4), size)).sum() for size in (1.0, small)
    )
    net.on_before_optimizer_step = lambda optimizer: gradients.append(
        float(net.layers.weight.grad[0, 0])
    )
    lit.fit(net, max_steps=1, precision="bf16-mixed", val=False)
    assert gradients == [1 + small]


def test_what_validation_makes_can_be_trained_with(lit):
    net = lit.Plain()
    net.validation_step = lambda batch, batch_idx: setattr(net, "kept", batch[0] * 2)
    net.training_step = lambda batch, batch_idx: (net.layers(batch[0]) * net.kept).sum()
    trainer = lit.fit(net, num_sanity_val_steps=1)
    assert (trainer.global_step, trainer.options.inference_mode) == (8, True)


@pytest.mark.numbers
def test_loaders_that_are_made_for_each_epoch_draw_as_often(lit):
    net, drawn = lit.Plain(), []
    net.train_dataloader = net.val_dataloader = lambda: lit.load(4)
    net.on_train_epoch_end = lambda: drawn.append(int(torch.randint(1000, ())))
    net.on_train_epoch_start = lambda: (
        drawn.append(int(torch.randint(1000, ()))) if net.current_epoch else None
    )
    torch.manual_seed(1)
    lit.make_trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1, num_sanity_val_steps=2).fit(
        net
    )
    assert drawn == [263, 341, 516, 340, 750]


def test_a_module_finds_under_fabric_what_it_asks_a_trainer_for(installed, lit, tmp_path):
    csv = installed("lightning.fabric.loggers").CSVLogger(root_dir=tmp_path, name="", version="v")
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1, loggers=csv)
    net, ended = lit.Plain(), []
    net.on_train_epoch_end = ended.append
    assert (net.fabric, net.logger) == (None, None)
    model, optimizer = fabric.setup(net, net.configure_optimizers())
    assert (net.fabric, net.trainer, model.logger, list(net.loggers)) == (
        fabric,
        fabric,
        csv,
        [csv],
    )
    assert net.optimizers() is optimizer
    before = net.layers.weight.detach().clone()
    net.manual_backward(model.training_step(next(iter(lit.load())), 0))
    net.optimizers().step()
    assert not torch.equal(net.layers.weight, before)
    net.log("a", 1.0)
    net.log_dict({"a": 2.0, "b": torch.tensor(3.0)})
    net.log("hidden", 1.0, logger=False)
    fabric.call("on_train_epoch_end", 7)
    assert ended == [7]
    csv.save()
    assert (tmp_path / "v" / "metrics.csv").read_text().endswith("\n1,,1.0,\n2,,2.0,3.0\n")
    assert copy.deepcopy(net).fabric is None


def test_a_module_belongs_to_whom_it_was_given_last(installed, lit):
    net, found = lit.Plain(), []
    installed("lightning.fabric").Fabric(accelerator="cpu", devices=1).setup(net)
    net.on_train_start = lambda: found.append(
        (net.fabric, net.trainer, net.optimizers().param_groups[0]["lr"])
    )
    trainer = lit.fit(net, max_steps=1)
    assert found == [(None, trainer, 0.1)]
