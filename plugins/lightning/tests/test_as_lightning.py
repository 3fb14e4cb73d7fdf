"""Programs that count on what Lightning does, with what Lightning 2.6.6 and torch 2.13.0 gave for them."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore:core trains in Lightning's place")

DATA = TensorDataset(torch.arange(10.0).unsqueeze(1) / 10)
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def make_net(pl):
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx):
            self.modes = (self.trainer.model.training, self.training, self.trainer.model is self)

        def predict_step(self, batch, batch_idx):
            return self.layer(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net()


@pytest.mark.numbers
def test_fabric_shuffles_as_under_lightning_on_one_device(installed):
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(1)
    loader = fabric.setup_dataloaders(DataLoader(torch.arange(6), batch_size=3, shuffle=True))
    assert [batch.tolist() for _ in range(2) for batch in loader] == FABRIC


FABRIC = [[0, 1, 4], [3, 2, 5], [4, 2, 0], [5, 1, 3]]


class Saving:
    """A callback's hooks, which save at an epoch's beginning and end."""

    def on_train_epoch_start(self, trainer, module):
        trainer.save_checkpoint(f"start{trainer.current_epoch}.ckpt")

    def on_train_epoch_end(self, trainer, module):
        trainer.save_checkpoint(f"end{trainer.current_epoch}.ckpt")


def test_a_checkpoints_epoch_is_the_one_that_runs_until_its_last_hooks_are_through(pl, tmp_path):
    saving = type("S", (Saving, pl.Callback), {})()
    trainer = pl.Trainer(max_epochs=2, callbacks=[saving], limit_val_batches=0, **QUIET)
    trainer.fit(make_net(pl), DataLoader(DATA, batch_size=4))
    trainer.save_checkpoint("after.ckpt")
    names = {"best": trainer.checkpoint_callback.best_model_path}
    names |= {name: f"{name}.ckpt" for name in ("start0", "end0", "start1", "end1", "after")}
    saved = {name: torch.load(path, weights_only=True) for name, path in names.items()}
    assert {name: each["epoch"] for name, each in saved.items()} == {
        "start0": 0, "end0": 0, "start1": 1, "end1": 1, "best": 1, "after": 2,
    }  # fmt: skip
    completed = {
        name: each["loops"]["fit_loop"]["epoch_progress"]["total"]["completed"] for name, each in saved.items()
    }
    assert completed == {"start0": 0, "end0": 0, "start1": 1, "end1": 1, "best": 1, "after": 2}


def test_prediction_writers_know_the_indices_on_one_device(pl):
    told = []

    class Writer(pl.callbacks.BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            told.append(batch_indices)

        def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
            told.append(batch_indices)

    trainer = pl.Trainer(callbacks=[Writer("batch_and_epoch")], **QUIET)
    predicted = trainer.predict(make_net(pl), DataLoader(DATA, batch_size=4))
    batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert told == [*batches, [batches]]
    assert len(predicted) == 3


def test_the_callbacks_are_the_users_and_the_defaults(pl):
    mine = pl.Callback()
    trainer = pl.Trainer(callbacks=mine, **QUIET)
    first, second = trainer.callbacks
    assert first is mine
    assert type(second) is pl.callbacks.ModelCheckpoint
    assert trainer.checkpoint_callback is second
    own = pl.callbacks.ModelCheckpoint(save_top_k=0)
    assert pl.Trainer(callbacks=[own], **QUIET).callbacks == [own]
    assert pl.Trainer(enable_checkpointing=False, **QUIET).callbacks == []
    assert pl.Trainer(barebones=True, accelerator="cpu").callbacks == []


def test_the_wrapper_is_in_evaluation_mode_while_the_module_is(pl):
    pytest.importorskip("core_ddp")
    net, loader = make_net(pl), DataLoader(DATA, batch_size=4)
    trainer = pl.Trainer(max_epochs=1, strategy="ddp", devices=1, enable_checkpointing=False, **QUIET)
    trainer.fit(net, loader, loader)
    assert net.modes == (False, False, False)
    assert net.training


def test_a_weight_that_a_step_uses_twice_adds_up_its_gradients_in_float32(pl):
    net = make_net(pl)
    small = 2.0**-9  # too small to change 1 in bfloat16
    net.training_step = lambda batch, batch_idx: sum(net.layer(torch.full((1, 1), size)).sum() for size in (1.0, small))
    gradients = []
    net.on_before_optimizer_step = lambda optimizer: gradients.append(float(net.layer.weight.grad))
    trainer = pl.Trainer(max_steps=1, devices=1, precision="bf16-mixed", limit_val_batches=0, **QUIET)
    trainer.fit(net, DataLoader(DATA, batch_size=5))
    assert gradients == [1 + small]


def test_what_validation_makes_can_be_trained_with(pl):
    net = make_net(pl)
    net.validation_step = lambda batch, batch_idx: setattr(net, "kept", batch[0] * 2)
    net.training_step = lambda batch, batch_idx: (net.layer(batch[0]) * net.kept).sum()
    trainer = pl.Trainer(max_epochs=1, devices=1, **QUIET)
    trainer.fit(net, DataLoader(DATA, batch_size=5), DataLoader(DATA, batch_size=5))
    assert (trainer.global_step, trainer.options.inference_mode) == (2, True)


@pytest.mark.numbers
def test_loaders_that_are_made_for_each_epoch_draw_as_often(pl):
    net, drawn = make_net(pl), []
    net.train_dataloader = lambda: DataLoader(DATA, batch_size=5)
    net.val_dataloader = lambda: DataLoader(DATA, batch_size=5)
    net.on_train_epoch_end = lambda: drawn.append(int(torch.randint(1000, ())))
    net.on_train_epoch_start = lambda: drawn.append(int(torch.randint(1000, ()))) if net.current_epoch else None
    torch.manual_seed(1)
    pl.Trainer(max_epochs=3, devices=1, reload_dataloaders_every_n_epochs=1, **QUIET).fit(net)
    assert drawn == RELOADED


RELOADED = [263, 341, 516, 340, 750]


def test_a_module_finds_under_fabric_what_it_asks_a_trainer_for(installed, pl, tmp_path):
    csv = installed("lightning.fabric.loggers").CSVLogger(root_dir=tmp_path, name="", version="v")
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1, loggers=csv)
    net = make_net(pl)
    ended = []
    net.on_train_epoch_end = ended.append
    assert (net.fabric, net.logger) == (None, None)
    model, optimizer = fabric.setup(net, net.configure_optimizers())
    assert (net.fabric, net.trainer, model.logger, list(net.loggers)) == (fabric, fabric, csv, [csv])
    assert net.optimizers() is optimizer
    before = net.layer.weight.item()
    net.manual_backward(model.training_step([torch.ones(1, 1)], 0))
    net.optimizers().step()
    assert net.layer.weight.item() != before
    net.log("a", 1.0)
    net.log_dict({"a": 2.0, "b": torch.tensor(3.0)})
    net.log("hidden", 1.0, logger=False)
    fabric.call("on_train_epoch_end", 7)
    assert ended == [7]
    csv.save()
    assert (tmp_path / "v" / "metrics.csv").read_text() == "step,a,b\n0,1.0,\n1,2.0,3.0\n"
    assert copy.deepcopy(net).fabric is None


def test_a_module_belongs_to_whom_it_was_given_last(installed, pl):
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    net = make_net(pl)
    fabric.setup(net)
    found = []
    net.on_train_start = lambda: found.append((net.fabric, net.trainer, net.optimizers().param_groups[0]["lr"]))
    trainer = pl.Trainer(max_steps=1, devices=1, limit_val_batches=0, **QUIET)
    trainer.fit(net, DataLoader(DATA, batch_size=5))
    assert found == [(None, trainer, 0.1)]
