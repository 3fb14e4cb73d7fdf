"""Strategies of programs for Lightning: names, and subclasses that run or are refused."""

import pickle

import pytest
import torch

import core


@pytest.fixture
def single(installed):
    """Lightning's name for the strategy of one device."""
    return installed("lightning.pytorch.strategies").SingleDeviceStrategy


def test_a_strategy_has_lightnings_names(lit, single):
    model, seen = lit.Plain(), []

    class Reads(lit.pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            strategy = trainer.strategy
            seen.append(
                (
                    strategy.lightning_module is pl_module,
                    sorted(strategy.lightning_module_state_dict()),
                )
            )
            assert (
                strategy.batch_to_device({"x": torch.ones(1)})["x"].device == strategy.root_device
            )
            weights = {
                name: torch.zeros_like(value) for name, value in pl_module.state_dict().items()
            }
            strategy.load_model_state_dict({"state_dict": weights})

    strategy = lit.fit(model, max_steps=1, callbacks=Reads()).strategy
    assert isinstance(strategy, single)
    assert seen == [(True, ["layers.bias", "layers.weight"])]
    assert (strategy.is_distributed, strategy.num_processes) == (False, 1)
    assert not model.layers.weight.any()


def test_a_strategy_that_was_chosen_by_its_alias_can_be_sent_to_another_process(lit):
    strategy = lit.make_trainer().strategy
    again = pickle.loads(pickle.dumps(strategy))
    assert type(again) is type(strategy)
    assert again.root_device == strategy.root_device


def test_the_overrides_of_a_subclass_are_called(lit, single):
    calls = []

    class Own(single):
        def setup(self, trainer):
            calls.append("setup")
            super().setup(trainer)

        def on_train_start(self):
            calls.append("on_train_start")

        def optimizer_step(self, optimizer, closure, model=None, **kwargs):
            calls.append("optimizer_step")
            return super().optimizer_step(optimizer, closure, model, **kwargs)

        def on_validation_end(self):
            calls.append("on_validation_end")

        def teardown(self):
            calls.append("teardown")
            super().teardown()

        def describe(self):
            """A method of the program's own."""

    lit.fit(lit.Plain(), strategy=Own("cpu"), max_epochs=1, limit_train_batches=1)
    assert calls == ["setup", "on_train_start", "optimizer_step", "on_validation_end", "teardown"]


def test_an_override_that_core_would_never_call_is_refused_where_the_class_is_used(single):
    with pytest.warns(
        UserWarning,
        match=r"Own overrides training_step, which nothing calls here. Override the module",
    ):
        own = type("Own", (single,), {"training_step": lambda self, batch: None})
    with pytest.raises(core.ConfigurationError, match="Own overrides training_step"):
        own("cpu")
    with pytest.warns(UserWarning, match="Give the Trainer a CheckpointIO"):
        type("Own", (single,), {"save_checkpoint": lambda self, *arguments: None})
    with pytest.raises(
        core.ConfigurationError, match=r"load_optimizer_state_dict\(checkpoint\): Override get_opt"
    ):
        type("Own", (single,), {"load_optimizer_state_dict": lambda self, checkpoint: None})


def test_a_step_that_does_not_say_how_often_it_updated_is_an_error(lit, single):
    class Own(single):
        def optimizer_step(self, optimizer, closure, model=None, **kwargs):
            return optimizer.step(closure)

    with pytest.raises(
        core.ConfigurationError, match=r"Own.optimizer_step returned .* the number of updates"
    ):
        lit.fit(lit.Plain(), strategy=Own("cpu"))
