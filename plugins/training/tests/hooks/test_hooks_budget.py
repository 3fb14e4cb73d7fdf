"""The cost of a step in calls of Python and C, the same in every run: a run that asks for nothing
pays for nothing.
"""

import gc
import itertools
import sys

import pytest
import torch

from core import Callback, Fabric
from support.small_nets import Net, quiet_trainer


def the_same(num_batches):
    return itertools.repeat(torch.ones(4, 4), num_batches)


def count(function, *args):
    calls = 0

    def profile(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    # Trainers of other tests would be collected in the middle, and let go of what they hold.
    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def per_step(run):
    """The slope between a short and a long run, without what is spent before and after."""
    run(2)  # what is imported at the first use
    run(2)  # what pytest is told of these modules, once
    return (count(run, 60) - count(run, 10)) / 50


def raw(num_steps):
    module = Net()
    optimizer = module.configure_optimizers()
    for batch_idx, batch in enumerate(the_same(num_steps)):
        loss = module.training_step(batch, batch_idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(module_class=Net, callback=None, **options):
    def run(num_steps):
        callbacks = callback() if callback is not None else None
        trainer = quiet_trainer(**{"max_epochs": 1, "callbacks": callbacks, **options})
        trainer.fit(module_class(), the_same(num_steps))

    return run


@pytest.fixture(scope="module")
def bare():
    return per_step(raw)


@pytest.fixture(scope="module")
def everything_off():
    return per_step(trained())


def test_the_loop_alone(bare, everything_off):
    assert everything_off - bare <= 40


def test_fabric(bare):
    def with_fabric(num_steps):
        fabric = Fabric(accelerator="cpu")
        module = Net()
        model, optimizer = fabric.setup(module, module.configure_optimizers())
        for batch_idx, batch in enumerate(the_same(num_steps)):
            loss = model.training_step(batch, batch_idx)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    assert per_step(with_fabric) - bare <= 20


def test_one_log(everything_off):
    class Logging(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    assert per_step(trained(Logging)) - everything_off <= 15


def test_an_overridden_hook(everything_off):
    class Listening(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            pass

    assert per_step(trained(callback=Listening)) - everything_off <= 2


def test_hooks_that_nobody_overrides(everything_off):
    assert per_step(trained(callback=Callback)) - everything_off < 1


@pytest.mark.parametrize(
    "options",
    [
        {"deterministic": True},
        {"benchmark": True},
        {"gradient_clip_val": None},
        {"detect_anomaly": False},
        {"terminate_on_nan": False},
    ],
)
def test_options_of_a_stage_cost_nothing_in_a_step(options, everything_off):
    assert per_step(trained(**options)) - everything_off < 1


def test_validation():
    class Validating(Net):
        def validation_step(self, batch, batch_idx):
            return self.layer(batch)

    module = Validating()

    def by_hand(num_batches):
        with torch.inference_mode():
            for batch_idx, batch in enumerate(the_same(num_batches)):
                module.validation_step(batch, batch_idx)

    def validate(num_batches):
        quiet_trainer().validate(module, the_same(num_batches))

    assert per_step(validate) - per_step(by_hand) <= 10
