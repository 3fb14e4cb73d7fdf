"""Several optimizers in automatic optimization: one backward, after which each of them steps
once.
"""

import pytest
import torch
from recording import SaveAt
from torch import nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from core import Capability, ModuleError, UnsupportedError
from core.precision import MixedPrecision
from core.strategies import SingleDeviceStrategy
from support.small_nets import Net, batches, quiet_trainer


def fit(module, **options):
    trainer = quiet_trainer(**{"max_epochs": 1, **options})
    trainer.fit(module, batches(4))
    return trainer


def seeded():
    torch.manual_seed(1)
    return Pair()


def by_matrices(module):
    """Matrices to Muon, all else to AdamW."""
    matrices, others = (
        [own for own in module.parameters() if (own.ndim == 2) is two] for two in (True, False)
    )
    return [torch.optim.Muon(matrices, lr=0.05), AdamW(others, lr=0.01)]


class Pair(Net):
    """Matrices and vectors with an optimizer and a scheduler for each kind."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(1, 3)
        self.calls = []

    def training_step(self, batch, batch_idx):
        return self.second(torch.tanh(self.layer(batch))).pow(2).mean()

    def configure_optimizers(self):
        optimizers = by_matrices(self)
        schedulers = [
            StepLR(each, 2, gamma) for each, gamma in zip(optimizers, (0.5, 0.1), strict=True)
        ]
        return optimizers, [{"scheduler": each, "interval": "step"} for each in schedulers]

    def on_before_optimizer_step(self, optimizer):
        self.calls.append(f"step {type(optimizer).__name__}")

    def on_before_zero_grad(self, optimizer):
        self.calls.append(f"zero {type(optimizer).__name__}")


@pytest.mark.parametrize(("window", "clip"), [(1, None), (2, 0.05)])
@pytest.mark.numbers
def test_each_steps_once_after_one_backward(window, clip):
    module, by_hand = seeded(), seeded()
    # The same in torch's own words: one norm over all gradients, as one optimizer would have it.
    optimizers, schedulers = by_hand.configure_optimizers()
    for index, batch in enumerate(batches(4)):
        (by_hand.training_step(batch, index) / window).backward()
        if (index + 1) % window == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(by_hand.parameters(), clip)
            for each in optimizers:
                each.step()
                each.zero_grad()
            for item in schedulers:
                item["scheduler"].step()
    trainer = fit(module, accumulate_grad_batches=window, gradient_clip_val=clip)
    assert all(map(torch.equal, module.parameters(), by_hand.parameters()))
    assert trainer.global_step == 4 // window
    assert module.calls == ["step Muon", "step AdamW", "zero Muon", "zero AdamW"] * (4 // window)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    module, resumed = seeded(), Pair()
    fit(module, callbacks=SaveAt(tmp_path / "three", 3), max_epochs=2)
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(resumed, batches(4), ckpt_path=tmp_path / "three")
    assert trainer.global_step == 8
    assert all(map(torch.equal, resumed.parameters(), module.parameters()))


@pytest.mark.parametrize("clips_itself", [False, True])
def test_scaled_optimizers_step_together_or_not_at_all(clips_itself):
    class Overflowing(Pair):
        # A gradient that is not finite, of a matrix alone: the vectors' optimizer must skip the
        # step too.
        def on_after_backward(self):
            self.layer.weight.grad[0, 0] = (
                float("inf") if self.global_step == 2 and not self.overflowed else 0.0
            )
            self.overflowed = self.global_step == 2
            self.gradient = self.second.bias.grad.clone()

        def on_before_optimizer_step(self, optimizer):
            self.ratios.append((self.gradient / self.second.bias.grad).mean().item())

    if clips_itself:
        Overflowing.configure_gradient_clipping = lambda self, optimizer, *_: self.clip_gradients(
            optimizer, 1e9
        )
    module = Overflowing()
    module.overflowed, module.ratios = False, []
    scaler = GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    trainer = fit(
        module, plugins=MixedPrecision(torch.bfloat16, scaler=scaler), gradient_clip_val=1e9
    )
    assert trainer.global_step == 3  # of four batches
    # Unscaled once, before the first hook; halved once after the overflow.
    assert module.ratios == pytest.approx([256.0] * 6 + [128.0] * 2)
    assert trainer.progress.total_batches == 4


def layer_and(kind):
    return lambda self: [SGD([self.layer.weight], lr=0.1), kind([self.layer.bias])]


def own_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
    optimizer.step()


@pytest.mark.parametrize(
    ("configure", "methods", "message"),
    [
        (
            layer_and(LBFGS),
            {},
            "returned 2 optimizers, and LBFGS evaluates the loss .* Set self.automatic_opt",
        ),
        (
            layer_and(AdamW),
            {"optimizer_step": own_step},
            "Refused overrides optimizer_step, whose closure .* Leave the override out",
        ),
        (
            lambda self: [SGD(self.parameters(), lr=0.1), AdamW([self.layer.bias])],
            {},
            r"more than one of which holds layer\.bias: .* Give each parameter to one",
        ),
    ],
)
def test_what_cannot_step_together(configure, methods, message):
    kind = type("Refused", (Net,), {"configure_optimizers": configure, **methods})
    with pytest.raises(ModuleError, match=message):
        fit(kind())


def test_strategies_of_one_optimizer_refuse_several():
    class OfOne(SingleDeviceStrategy):
        capabilities = SingleDeviceStrategy().capabilities & ~Capability.SEVERAL_OPTIMIZERS

    module = Pair()
    with pytest.raises(
        UnsupportedError, match=r"OfOne sets up one optimizer, not 2\. Use parameter groups"
    ):
        fit(module, strategy=OfOne())
    assert module.calls == []
