"""A strategy whose step is one compiled program: what the core hands over to it, counts, and
refuses.
"""

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import (
    Capability,
    CheckpointError,
    ConfigurationError,
    Fabric,
    StepOutput,
    UnsupportedError,
)
from core.callbacks import EMA, LambdaCallback, ModelCheckpoint
from core.strategies import SingleDeviceStrategy
from support.small_nets import Net, quiet_trainer

UPDATES, ACCUMULATED = 2, 3


class Joined:
    """Batches of the user's, so many in one."""

    def __init__(self, loader, number):
        self.loader, self.num_joined_batches = loader, number

    def __iter__(self):
        held = []
        for batch in self.loader:
            held.append(batch[0])
            if len(held) == self.num_joined_batches:
                yield [torch.cat(held)]
                held = []

    def __len__(self):
        return len(self.loader) // self.num_joined_batches


class CompiledStrategy(SingleDeviceStrategy):
    """Runs windows of batches in one call: forward, backward and update."""

    accumulated, updates_per_batch = 1, UPDATES

    @property
    def capabilities(self):
        return Capability.COMPILED_STEP | Capability.OWNS_ACCUMULATION

    def setup(self, trainer):
        self.accumulated = trainer.accumulate_grad_batches
        super().setup(trainer)

    def setup_dataloader(self, loader, stage):
        return Joined(loader, UPDATES * self.accumulated) if stage == "fit" else loader

    def step_callable(self, name, module=None):
        call = super().step_callable(name, module)
        return self._program(call) if name == "training_step" else call

    def _program(self, call):
        def run(batch, *numbers):
            losses, (optimizer,) = [], self.optimizers
            for window in batch[0].chunk(UPDATES):
                for part in window.chunk(self.accumulated):
                    losses.append(call([part], *numbers))
                    (losses[-1] / self.accumulated).backward()
                optimizer.step()
                optimizer.zero_grad()
            return torch.stack(losses).mean().detach()

        return run

    def run_training_step(self, batch, batch_idx, step):
        return StepOutput(step.compute_loss(batch, batch_idx), num_optimizer_steps=UPDATES)


class Learning(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx=0):
        return super().training_step(batch[0], batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append((batch_idx, self.trainer.global_step, len(batch[0])))

    def configure_optimizers(self):
        self.estimated = self.trainer.estimated_stepping_batches
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def saves_and_stops(path, num_batches):
    def save(trainer, module, outputs, batch, batch_idx):
        if batch_idx + 1 == num_batches:
            trainer.save_checkpoint(path)
            trainer.should_stop = True

    return LambdaCallback(on_train_batch_end=save)


def fit(strategy, *, module=None, ckpt_path=None, make=lambda loader: loader, **options):
    data = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    trainer = quiet_trainer(strategy=strategy, **{"max_epochs": 2, **options})
    module = module or Learning()
    torch.manual_seed(5)
    trainer.fit(
        module,
        make(DataLoader(TensorDataset(data), batch_size=4, shuffle=True)),
        ckpt_path=ckpt_path,
    )
    return trainer, module


def test_windows_are_handed_over_whole_and_updates_counted():
    trainer, module = fit(CompiledStrategy(), accumulate_grad_batches=ACCUMULATED)
    assert module.seen == [(0, 2, 24), (1, 4, 24), (0, 6, 24), (1, 8, 24)]
    expected, other = fit("single_device", accumulate_grad_batches=ACCUMULATED)
    assert trainer.global_step == expected.global_step == 8
    torch.testing.assert_close(module.state_dict(), other.state_dict())


def test_limits_and_estimates_follow_the_updates(tmp_path):
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    trainer, module = fit(
        CompiledStrategy(), max_steps=8, enable_checkpointing=True, callbacks=saves
    )
    assert (module.estimated, trainer.global_step) == (8, 8)
    # 3 lies between 2 and 4: what is due within a batch is done at its end. The last one is saved
    # when training ends.
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["step=4", "step=6", "step=8"]


@pytest.mark.parametrize("make", [lambda loader: loader, list], ids=["in samples", "in batches"])
@pytest.mark.parametrize(
    ("first", "num_batches", "second"),
    [
        (CompiledStrategy, 2, SingleDeviceStrategy),
        (SingleDeviceStrategy, 2 * UPDATES, CompiledStrategy),
    ],
)
def test_a_run_goes_on_in_the_middle_of_an_epoch_elsewhere(
    first, num_batches, second, make, tmp_path
):
    """The position counts samples, or batches of the user's loader, however many are joined."""
    path = tmp_path / "checkpoint"
    fit(first(), callbacks=saves_and_stops(path, num_batches), max_epochs=1, make=make)
    rest, whole = fit(second(), ckpt_path=path, make=make), fit("single_device", make=make)
    assert rest[0].global_step == whole[0].global_step
    torch.testing.assert_close(rest[1].state_dict(), whole[1].state_dict())


def test_a_place_between_the_joined_ones_is_entered_by_samples_only(tmp_path):
    """After three updates there is no way to eight, two at a time; nor to a batch of two of a
    list's.
    """
    path = tmp_path / "checkpoint"
    saves = saves_and_stops(path, 3)
    fit("single_device", callbacks=saves)
    with pytest.raises(
        ConfigurationError,
        match=r"max_steps=8, .* 2 updates .* from step 3 on, .* Use max_steps=9\.",
    ):
        fit(CompiledStrategy(), ckpt_path=path, max_steps=8)
    assert fit(CompiledStrategy(), ckpt_path=path, max_steps=9)[0].global_step == 9
    fit("single_device", callbacks=saves, make=list)
    with pytest.raises(
        CheckpointError, match=r"saved after 3 batches .* this strategy takes 2 at once .* list"
    ):
        fit(CompiledStrategy(), ckpt_path=path, make=list)


def test_a_hook_within_the_step_is_refused():
    class HookedModule(Learning):
        def on_after_backward(self):
            """Would run inside the program."""

    text = "HookedModule has the hook on_after_backward, and CompiledStrategy"
    with pytest.raises(UnsupportedError, match=text):
        fit(CompiledStrategy(), module=HookedModule())


def test_an_overridden_step_of_the_optimizer_is_refused():
    class Overriding(Learning):
        def optimizer_step(self, *args, **kwargs):
            super().optimizer_step(*args, **kwargs)

    with pytest.raises(UnsupportedError, match="Overriding overrides optimizer_step"):
        fit(CompiledStrategy(), module=Overriding())


def test_a_scheduler_by_step_is_refused():
    class Scheduled(Learning):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    text = "interval='step', and CompiledStrategy makes 2 updates"
    with pytest.raises(ConfigurationError, match=text):
        fit(CompiledStrategy(), module=Scheduled())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"callbacks": partial(LambdaCallback, on_before_optimizer_step=print)},
            UnsupportedError,
            "LambdaCallback has the hook on_before_optimizer_step",
        ),
        ({"gradient_clip_val": 0.5}, UnsupportedError, r"gradient_clip_val=0\.5: CompiledStrategy"),
        (
            {"max_steps": 3},
            ConfigurationError,
            "max_steps=3, and CompiledStrategy makes 2 updates in each batch",
        ),
        ({"callbacks": EMA}, UnsupportedError, "EMA reads weights between two steps"),
    ],
    ids=["callback", "clipping", "max_steps", "average"],
)
def test_what_no_compiled_step_can_do_is_refused(options, error, text):
    made = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(error, match=text):
        fit(CompiledStrategy(), **made)


def test_a_loop_by_hand_can_not_train_it():
    fabric, module = Fabric(strategy=CompiledStrategy(), accelerator="cpu"), Net()
    with pytest.raises(
        UnsupportedError,
        match=r"CompiledStrategy runs forward, .* no training in a loop of your own",
    ):
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))


def test_a_weight_of_a_loss_is_refused_by_name():
    class Weighing(CompiledStrategy):
        def _program(self, call):
            return lambda *arguments: {"loss": call(*arguments).detach(), "weight": 3}

    with pytest.raises(
        UnsupportedError, match="a loss with a weight, and Weighing has stepped by then"
    ):
        fit(Weighing())
