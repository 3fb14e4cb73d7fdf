"""Parts of training that programs and callbacks take over."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.numbers


def test_the_backbone_is_frozen_for_an_epoch(lit):
    class Backbone(lit.Net):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = self.layers[:2], self.layers[2]

        def on_train_epoch_end(self):
            frozen = [not each.requires_grad for each in self.backbone.parameters()]
            rates = [round(group["lr"], 5) for group in self.optimizers().param_groups]
            self.seen.append((frozen, rates))

        def configure_optimizers(self):
            return torch.optim.SGD(filter(lambda each: each.requires_grad, self.parameters()), 0.1)

    net = Backbone()
    callback = lit.pl.callbacks.BackboneFinetuning(unfreeze_backbone_at_epoch=1, train_bn=False)
    lit.fit(net, callbacks=[callback], max_epochs=3)
    assert net.seen[0] == ([True, True, False, False], [0.1])
    assert net.seen[1:] == [([False] * 4, [0.1, 0.01]), ([False] * 4, [0.1, 0.02])]
    assert lit.total(net) == 45.5968


@pytest.mark.parametrize(
    ("options", "zeros", "total"),
    [
        ({"amount": 0.5, "use_lottery_ticket_hypothesis": False}, 11, 1.568),
        ({"amount": 0.25}, 6, 3.4993),
        ({"amount": 3}, 4, 4.0809),
    ],
)
def test_pruning(lit, options, zeros, total):
    class Wide(lit.Plain):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 4)

        def loss(self, batch):
            return self.layers(batch[0]).square().mean()

    net = Wide()
    lit.fit(net, callbacks=[lit.pl.callbacks.ModelPruning("l1_unstructured", **options)])
    assert sorted(net.state_dict()) == ["layers.bias", "layers.weight"]
    assert (int((net.layers.weight == 0).sum()), lit.total(net)) == (zeros, total)


def test_progress_bars(lit):
    seen = []

    class Bar(lit.pl.callbacks.TQDMProgressBar):
        def init_train_tqdm(self):
            seen.append("train")
            return super().init_train_tqdm()

        def init_validation_tqdm(self):
            seen.append("validation")
            return super().init_validation_tqdm()

        def get_metrics(self, trainer, module):
            self.metrics = super().get_metrics(trainer, module)
            return {}

    class Rich(lit.pl.callbacks.RichProgressBar):
        def configure_columns(self, trainer):
            seen.append("columns")
            return super().configure_columns(trainer)

    class Shown(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.log("shown", 1.0, prog_bar=True)
            return self.loss(batch)

    bar = Bar()
    for each in (bar, Rich()):
        lit.fit(Shown(), callbacks=[each], enable_progress_bar=True, max_epochs=1)
    assert (seen, bar.metrics) == (["train", "validation", "columns"], {"shown": 1.0})


@pytest.mark.parametrize(
    ("options", "norm", "total"),
    [({"max_norm": 0.5}, 8.8184, 0.3783), ({"clip_val": 0.1}, None, 0.4)],
)
def test_clipping_under_fabric(lit, installed, options, norm, total):
    fabric, module = installed("lightning").Fabric(accelerator="cpu", devices=1), nn.Linear(4, 1)
    net, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    fabric.backward(net(lit.DATA).sum())
    found = fabric.clip_gradients(net, optimizer, **options)
    assert (found and round(float(found), 4), round(float(module.weight.grad.abs().sum()), 4)) == (
        norm,
        total,
    )


def test_an_infinite_gradient_is_refused(installed, lit):
    fabric, module = installed("lightning").Fabric(accelerator="cpu", devices=1), nn.Linear(4, 1)
    net, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    fabric.backward(net(lit.DATA).sum() * float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        fabric.clip_gradients(net, optimizer, max_norm=0.5)
