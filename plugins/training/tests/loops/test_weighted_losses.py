"""Losses that say how many items they are a mean over: the gradient, and logged means, are those of
all items.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from core import Callback, Fabric, Module, ModuleError
from core.callbacks import LambdaCallback
from core_testing import in_one_process
from support.global_batches import close
from support.small_nets import At, quiet_trainer

pytestmark = pytest.mark.numbers

NUM_SAMPLES, MOST_ITEMS = 22, 5


class Samples(Dataset):
    """Items of 4 numbers, and a mask of those that count. Some samples have none."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.items = torch.randn(
            NUM_SAMPLES, MOST_ITEMS, 4, generator=generator, dtype=torch.float64
        )
        counts = torch.randint(0, MOST_ITEMS + 1, (NUM_SAMPLES,), generator=generator)
        self.masks = torch.arange(MOST_ITEMS) < counts.unsqueeze(1)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.items[index], self.masks[index]


class Net(Module):
    """Learns from the mean over items, and logs it."""

    def __init__(self, weigh=lambda num_items: num_items, optimizer=torch.optim.Adam):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1, dtype=torch.float64)
        self.weigh, self.optimizer = weigh, optimizer
        self.means = []

    def mean_of(self, batch):
        """The mean, NaN where there are no items, and their number."""
        items, mask = batch
        values = self.layer(items).squeeze(-1)[mask].square()
        return nn.functional.mse_loss(values, torch.ones_like(values)), mask.sum()

    def training_step(self, batch, batch_idx):
        loss, num_items = self.mean_of(batch)
        self.log("mean", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "weight": self.weigh(num_items)}

    def on_train_epoch_end(self):
        self.means.append(float(self.trainer.callback_metrics["mean"]))

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=0.05)


def weights_of(module):
    return torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()


def fit(module, *, batch_size=2, window=1, **options):
    trainer = quiet_trainer(**{"max_epochs": 2, "accumulate_grad_batches": window, **options})
    trainer.fit(module, DataLoader(Samples(), batch_size=batch_size))
    return trainer


@pytest.mark.parametrize(
    "weigh",
    [
        lambda number: number,
        int,
        lambda number: float(number) * 1e12,
        lambda number: number.numpy()[()],
        lambda number: number * torch.ones(1, requires_grad=True),
    ],
    ids=["tensor", "int", "large", "numpy", "with a graph"],
)
def test_a_step_learns_from_the_mean_over_all_items(weigh):
    """Batches of one sample, of which some have no item: those are skipped, although their loss is
    NaN.
    """
    module = Net(weigh)
    fit(module, batch_size=1, window=3)
    # a loop over whole windows of 3 on one device
    whole, expected_means = Net(), []
    optimizer = whole.configure_optimizers()
    for _ in range(2):
        total = count = 0
        for batch in DataLoader(Samples(), batch_size=3):
            loss, num_items = whole.mean_of(batch)
            if not num_items:
                continue
            total, count = total + loss.item() * num_items.item(), count + num_items.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        expected_means.append(total / count)
    assert weights_of(module) == close(weights_of(whole))
    assert module.means == close(expected_means)


def test_the_mean_of_a_step_over_ranks_is_that_of_all_items():
    def means_of_steps(num_ranks):
        class Stepwise(Net):
            def training_step(self, batch, batch_idx):
                output = super().training_step(batch, batch_idx)
                self.log("now", output["loss"], sync_dist=True)
                return output

            def on_train_batch_end(self, outputs, batch, batch_idx):
                steps.append(self.trainer.callback_metrics["now"].item())

        steps = []
        strategy = "ddp" if num_ranks > 1 else "auto"
        fit(
            Stepwise(),
            batch_size=6 // num_ranks,
            devices=num_ranks,
            strategy=strategy,
            max_epochs=1,
        )
        return steps

    expected = close(means_of_steps(1))
    assert in_one_process(means_of_steps, 3, ranks=3) == [expected] * 3


@pytest.mark.parametrize(
    "weight",
    [-1, float("nan"), float("inf"), torch.ones(2), "2", torch.tensor(1j), 10**400],
    ids=lambda one: str(one)[:9],
)
def test_what_can_be_no_weight_is_refused(weight):
    with pytest.raises(ModuleError, match=r"has the weight .*Expected the number of items"):
        fit(Net(lambda _: weight))


@pytest.mark.parametrize("first", [True, False])
def test_a_weight_with_some_losses_and_not_with_others_is_refused(first):
    class Partly(Net):
        def training_step(self, batch, batch_idx):
            output = super().training_step(batch, batch_idx)
            return output if (batch_idx == 0) is first else output["loss"]

    with pytest.raises(ModuleError, match="with none"):
        fit(Partly())


def test_hooks_and_clipping_see_the_gradient_of_all_items():
    def norm_of(module):
        return sum(float(part.grad.square().sum()) for part in module.parameters()) ** 0.5

    class Norms(Callback):
        """The norm of the gradient before each step, and after the last backward."""

        def on_after_backward(self, trainer, module):
            self.after_backward = norm_of(module)

        def on_before_optimizer_step(self, trainer, module, optimizer):
            self.before_step = norm_of(module)

    expected = Net(optimizer=torch.optim.SGD)
    batch = next(iter(DataLoader(Samples(), batch_size=4)))
    expected.mean_of(batch)[0].backward()
    norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.01).item()
    expected.configure_optimizers().step()
    module, norms = Net(optimizer=torch.optim.SGD), Norms()
    fit(module, window=2, max_steps=1, max_epochs=-1, callbacks=norms, gradient_clip_val=0.01)
    assert (norms.after_backward, norms.before_step) == (close(norm), close(norm))
    assert weights_of(module) == close(weights_of(expected))


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, torch.optim.Adam])
def test_an_optimizer_that_evaluates_the_loss_has_the_same_mean(optimizer):
    class Own(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)

    module, whole = Own(optimizer=optimizer), Own(lambda _: None, optimizer=optimizer)
    for each in (module, whole):
        each.on_train_epoch_end = None
        fit(each, batch_size=4, max_epochs=1)
    assert weights_of(module) == close(weights_of(whole))


def test_a_window_without_weight_leaves_parameters_alone_where_the_optimizer_evaluates_the_loss():
    class Momentum(Net):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.005, momentum=0.9)

    class Own(Momentum):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            optimizer.zero_grad(set_to_none=False)

    module, plain = Own(), Momentum()
    assert fit(module, batch_size=1).global_step == fit(plain, batch_size=1).global_step
    assert weights_of(module) == close(weights_of(plain))


class Loop:
    """Layers with one weight each, whose gradient is the mean of the samples that they have
    seen.
    """

    def __init__(self, num_layers=1):
        self.fabric = Fabric(accelerator="cpu")
        layers = [torch.nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(num_layers)]
        optimizers = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in layers]
        self.module = torch.nn.ModuleList(layers)
        self.model, *self.optimizers = self.fabric.setup(self.module, *optimizers)

    def backward(self, *samples, layer=0, **options):
        loss = self.module[layer](torch.tensor(samples, dtype=torch.float64).reshape(-1, 1)).mean()
        self.fabric.backward(loss, **{"weight": len(samples), **options})

    def step(self, layer=0):
        """By how much the step has moved the weight."""
        before = self.module[layer].weight.item()
        self.optimizers[layer].step()
        return before - self.module[layer].weight.item()


def test_each_of_several_optimizers_has_the_weights_of_its_own_losses():
    """Each part sees its own losses in an order of its own, and one gradient is cleared."""
    loop = Loop(2)
    loop.backward(6.0)
    loop.backward(1.0, 2.0, 3.0, 4.0, layer=1)
    loop.backward(0.0, 0.0, 3.0)
    loop.backward(5.0, 9.0, layer=1)
    assert [loop.step(0), loop.step(1)] == close([9 / 4, 24 / 6])
    loop.optimizers[1].zero_grad()
    loop.optimizers[0].zero_grad()
    loop.backward(7.0, 7.0, 7.0)
    loop.optimizers[0].zero_grad()
    loop.backward(1.0, 2.0)
    assert loop.step(0) == close(1.5)


def test_gradients_may_be_looked_at_within_a_window():
    """The norm after each backward is that of the items so far, and the step that of all."""
    loop, norms = Loop(), []
    for samples in ([1.0], [2.0, 3.0], [4.0, 5.0, 9.0]):
        loop.backward(*samples)
        norms.append(
            loop.fabric.clip_gradients(loop.model, loop.optimizers[0], max_norm=1e9).item()
        )
    assert norms == close([1.0, 2.0, 4.0])
    assert loop.step() == close(4.0)


@pytest.mark.parametrize("clears", ["optimizer", "model", "module", "parameters"])
def test_a_window_that_is_cleared_counts_no_more(clears):
    loop = Loop()
    loop.backward(7.0, 8.0, 9.0)
    if clears == "parameters":
        loop.module[0].weight.grad = None
    else:
        {"optimizer": loop.optimizers[0], "model": loop.model, "module": loop.module}[
            clears
        ].zero_grad()
    loop.backward(1.0, 2.0)
    assert loop.step() == close(1.5)


def test_a_loop_by_hand_gives_all_losses_a_weight_or_none():
    loop = Loop()
    loop.backward(1.0, weight=None)
    with pytest.raises(ModuleError, match="there are gradients of losses without"):
        loop.backward(1.0)
    loop.model.zero_grad()
    loop.backward(1.0)
    with pytest.raises(ModuleError, match="A loss has no weight, and one before had one"):
        loop.backward(1.0, weight=None)


def test_a_resumed_run_has_the_same_bits(tmp_path):
    """It begins with another reference than the one that goes on, and both are powers of two."""

    def save(trainer, *_):
        if trainer.global_step == 2:
            trainer.save_checkpoint(tmp_path / "two.ckpt")

    whole, resumed = Net(), Net()
    fit(whole, window=3, callbacks=LambdaCallback(on_train_batch_end=save))
    trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=3)
    trainer.fit(resumed, DataLoader(Samples(), batch_size=2), ckpt_path=tmp_path / "two.ckpt")
    assert weights_of(resumed) == weights_of(whole)
    assert resumed.means == whole.means


def test_batch_size_counts_before_the_weight_and_sums_count_as_they_are():
    def log(module):
        module.log(
            "by_size",
            float(module.trainer.progress.batch),
            on_step=False,
            on_epoch=True,
            batch_size=1,
        )
        module.log("sum", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")

    logged = fit(
        Net(), batch_size=11, max_epochs=1, callbacks=At("on_train_batch_start", log)
    ).callback_metrics
    assert (logged["by_size"], logged["sum"]) == (0.5, 2)
