"""Hooks that get from Lightning what core's don't: a whole checkpoint, and a say in the mode of a module's parts."""

import io

import pytest
import torch

from core.registry import load_prelude
from core_lightning.installing import TRUSTS

pytestmark = pytest.mark.filterwarnings("ignore:core trains in Lightning's place")


class Secret:
    """An object that a checkpoint doesn't hold by itself."""

    def __init__(self, tag=0):
        self.tag = tag


def make_net(pl):
    class Net(pl.LightningModule):
        def __init__(self, width=2, extra=None, thing=None):
            super().__init__()
            self.save_hyperparameters("width")
            self.layer, self.inner = torch.nn.Linear(width, 1), torch.nn.Dropout()
            self.secret, self.modes = Secret(), []

        def training_step(self, batch):
            return self.layer(batch).square().mean()

        def validation_step(self, batch):
            self.modes.append((self.training, self.inner.training))

        def predict_step(self, batch):
            return self.layer(batch)

        def on_validation_model_eval(self):
            self.eval()
            self.inner.train()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_save_checkpoint(self, checkpoint):
            super().on_save_checkpoint(checkpoint)
            checkpoint["secret"] = self.secret
            checkpoint["steps"] = checkpoint["global_step"]
            checkpoint["hyper_parameters"].update(extra=5, thing=self.secret)
            checkpoint["state_dict"].pop("layer.bias")

        def on_load_checkpoint(self, checkpoint):
            self.secret, self.steps = checkpoint["secret"], checkpoint["steps"]
            self.loaded = checkpoint["hyper_parameters"]

    return Net


def fit(pl, net, path, **options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", num_sanity_val_steps=0, **quiet)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    trainer.fit(net, loader, loader, **options)
    trainer.save_checkpoint(path)
    return trainer


def test_a_whole_checkpoint_is_given_and_what_a_hook_makes_of_it_is_saved(installed, tmp_path):
    pl = installed("lightning.pytorch")
    net, path = make_net(pl)(), tmp_path / "last.ckpt"
    with pytest.warns(UserWarning, match=r"adds 'thing' \(of [\w.]+Secret\), 'secret' \(of [\w.]+Secret\)"):
        fit(pl, net, path)
    saved = torch.load(path, weights_only=True)
    assert (saved["steps"], saved["global_step"]) == (2, 2)
    assert saved["hyper_parameters"] == {"width": 2, "extra": 5}
    assert list(saved["state_dict"]) == ["layer.weight"]
    assert "secret" not in saved
    assert net.modes == [(False, True)] * 2
    assert net.inner.training
    with pytest.raises(KeyError, match="secret"):
        type(net).load_from_checkpoint(path, strict=False, trusted=False)


def test_a_program_that_is_trusted_keeps_its_objects(installed, tmp_path, monkeypatch, request):
    monkeypatch.setattr(torch, "load", torch.load)  # it is another one in such a program
    request.addfinalizer(TRUSTS.clear)
    load_prelude("lightning-trusted")()
    pl = installed("lightning.pytorch")
    net, path = make_net(pl)(), tmp_path / "last.ckpt"
    fit(pl, net, path)
    assert "secret" not in torch.load(path, weights_only=True)  # all that isn't plain is bytes
    own_read = torch.load(path, weights_only=False)
    assert isinstance(own_read["secret"], Secret)
    assert own_read["hyper_parameters"] == {"width": 2, "extra": 5, "thing": own_read["secret"]}
    loaded = make_net(pl).load_from_checkpoint(path, strict=False)
    assert isinstance(loaded.secret, Secret)
    assert (loaded.steps, loaded.loaded["width"], loaded.loaded["extra"]) == (2, 2, 5)
    assert loaded.loaded["thing"] is loaded.secret
    own_read["hyper_parameters"] |= {"thing": Secret(tag=1), "nested": net.hparams}
    buffer = io.BytesIO()
    torch.save(own_read, buffer)
    buffer.seek(0)
    changed = make_net(pl).load_from_checkpoint(buffer, strict=False)
    assert (changed.loaded["thing"].tag, changed.secret.tag) == (1, 0)
    fresh = make_net(pl)()
    fresh.strict_loading, fresh.secret = False, None
    fit(pl, fresh, tmp_path / "next.ckpt", ckpt_path=path)
    assert isinstance(fresh.secret, Secret), "unpickled before the module's hook asks for it"


def test_the_interval_of_a_prediction_writer_is_lightnings(installed):
    callbacks = installed("lightning.pytorch.callbacks")

    class Writer(callbacks.BasePredictionWriter):
        def write_on_batch_end(self, *args):
            pass

        def write_on_epoch_end(self, *args):
            pass

    found = {name: Writer(name).interval for name in ("batch", "epoch", "batch_and_epoch")}
    assert {name: (each.on_batch, each.on_epoch) for name, each in found.items()} == {
        "batch": (True, False),
        "epoch": (False, True),
        "batch_and_epoch": (True, True),
    }


class Drawing:
    """A loader that isn't torch's, and draws when it is asked for an iterator."""

    def __iter__(self):
        torch.rand(())
        return iter([torch.ones(1, 2)])

    def __len__(self):
        return 1


@pytest.mark.parametrize(
    ("sanity_steps", "recorded"), [(0, [6, 8, 10, 12, 15, 18, 21]), (1, [5, 5, 7, 9, 11, 14, 17, 20])]
)
def test_what_draws_when_it_is_asked_is_asked_as_often_as_by_lightning(installed, tmp_path, sanity_steps, recorded):
    """By each step, as many numbers were drawn as under Lightning 2.6.6, where these were counted."""
    pl = installed("lightning.pytorch")
    drawn = []

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        @property
        def example_input_array(self):
            torch.rand(())
            return torch.ones(1, 2)

        def forward(self, batch):
            return self.layer(batch)

        def training_step(self, batch):
            drawn.append(torch.rand(()).item())
            return self.layer(batch).sum()

        def validation_step(self, batch):
            drawn.append(torch.rand(()).item())

        test_step = predict_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    net = Net()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", num_sanity_val_steps=sanity_steps, **quiet)
    torch.manual_seed(1)
    stream = [torch.rand(()).item() for _ in range(40)]
    torch.manual_seed(1)
    trainer.fit(net, Drawing(), Drawing())
    for stage in (trainer.validate, trainer.test, trainer.predict):
        stage(net, Drawing())
    assert [stream.index(value) for value in drawn] == recorded
