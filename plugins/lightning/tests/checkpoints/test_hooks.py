"""Hooks that get from Lightning what core's don't: a whole checkpoint, and a say in the mode of a
module's parts.
"""

import io

import pytest
import torch

from core.registry import load_prelude
from core_lightning.checkpoints.trusted_reads import TRUSTS


class Secret:
    """An object that a checkpoint doesn't hold by itself."""

    def __init__(self, tag=0):
        self.tag = tag


def make_net(lit):
    class Net(lit.Plain):
        def __init__(self, width=2, extra=None, thing=None):
            super().__init__()
            self.save_hyperparameters("width")
            self.inner, self.secret = torch.nn.Dropout(), Secret()

        def validation_step(self, batch, batch_idx):
            self.seen.append((self.training, self.inner.training))

        def on_validation_model_eval(self):
            self.eval()
            self.inner.train()

        def on_save_checkpoint(self, checkpoint):
            super().on_save_checkpoint(checkpoint)
            checkpoint["secret"] = self.secret
            checkpoint["steps"] = checkpoint["global_step"]
            checkpoint["hyper_parameters"].update(extra=5, thing=self.secret)
            checkpoint["state_dict"].pop("layers.bias")

        def on_load_checkpoint(self, checkpoint):
            self.secret, self.steps = checkpoint["secret"], checkpoint["steps"]
            self.loaded = checkpoint["hyper_parameters"]

    return Net


def test_a_whole_checkpoint_is_given_and_what_a_hook_makes_of_it_is_saved(lit):
    net = make_net(lit)()
    with pytest.warns(
        UserWarning, match=r"adds 'thing' \(of [\w.]+Secret\), 'secret' \(of [\w.]+Secret\)"
    ):
        lit.fit(net, max_epochs=1).save_checkpoint("last.ckpt")
    saved = torch.load("last.ckpt", weights_only=True)
    assert (saved["steps"], saved["global_step"]) == (4, 4)
    assert saved["hyper_parameters"] == {"width": 2, "extra": 5}
    assert list(saved["state_dict"]) == ["layers.weight"]
    assert "secret" not in saved
    assert net.seen == [(False, True)] * 4
    assert net.inner.training
    with pytest.raises(KeyError, match="secret"):
        type(net).load_from_checkpoint("last.ckpt", strict=False, trusted=False)


def test_a_program_that_is_trusted_keeps_its_objects(lit, monkeypatch, request):
    monkeypatch.setattr(torch, "load", torch.load)  # it is another one in such a program
    request.addfinalizer(TRUSTS.clear)
    load_prelude("lightning-trusted")()
    net = make_net(lit)()
    lit.fit(net, max_epochs=1).save_checkpoint("last.ckpt")
    # all that isn't plain is bytes
    assert "secret" not in torch.load("last.ckpt", weights_only=True)
    own_read = torch.load("last.ckpt", weights_only=False)
    assert isinstance(own_read["secret"], Secret)
    assert own_read["hyper_parameters"] == {"width": 2, "extra": 5, "thing": own_read["secret"]}
    loaded = make_net(lit).load_from_checkpoint("last.ckpt", strict=False)
    assert isinstance(loaded.secret, Secret)
    assert (loaded.steps, loaded.loaded["width"], loaded.loaded["extra"]) == (4, 2, 5)
    assert loaded.loaded["thing"] is loaded.secret
    own_read["hyper_parameters"] |= {"thing": Secret(tag=1), "nested": net.hparams}
    buffer = io.BytesIO()
    torch.save(own_read, buffer)
    buffer.seek(0)
    changed = make_net(lit).load_from_checkpoint(buffer, strict=False)
    assert (changed.loaded["thing"].tag, changed.secret.tag) == (1, 0)
    fresh = make_net(lit)()
    fresh.strict_loading, fresh.secret = False, None
    lit.fit(fresh, ckpt_path="last.ckpt")
    assert isinstance(fresh.secret, Secret), "unpickled before the module's hook asks for it"


@pytest.mark.parametrize(
    ("sanity_steps", "recorded"),
    [(0, [6, 8, 10, 12, 15, 18, 21]), (1, [5, 5, 7, 9, 11, 14, 17, 20])],
)
def test_what_draws_when_it_is_asked_is_asked_as_often_as_by_lightning(lit, sanity_steps, recorded):
    """By each step, as many numbers were drawn as under Lightning 2.6.6, where these were
    counted.
    """

    class Net(lit.Plain):
        @property
        def example_input_array(self):
            torch.rand(())
            return torch.ones(1, 4)

        def training_step(self, batch, batch_idx):
            self.validation_step(batch, batch_idx)
            return self(batch).sum()

        def validation_step(self, batch, batch_idx):
            self.seen.append(torch.rand(()).item())

        test_step = predict_step = validation_step

    net = Net()
    trainer = lit.make_trainer(
        max_epochs=2, num_sanity_val_steps=sanity_steps, enable_model_summary=True
    )
    torch.manual_seed(1)
    stream = [torch.rand(()).item() for _ in range(40)]
    torch.manual_seed(1)

    class Drawing:
        """A loader that isn't torch's, and draws when it is asked for an iterator."""

        def __iter__(self):
            torch.rand(())
            return iter([torch.ones(1, 4)])

        def __len__(self):
            return 1

    trainer.fit(net, Drawing(), Drawing())
    for stage in (trainer.validate, trainer.test, trainer.predict):
        stage(net, Drawing())
    assert [stream.index(value) for value in net.seen] == recorded
