"""Throughput, collectives, hyperparameters and exports, for loops of a program's own. Figures are Lightning's."""

import argparse

import pytest
import torch

import core


def test_throughput_is_of_the_window_and_of_all_devices(installed):
    utilities = installed("lightning.fabric.utilities")
    throughput = utilities.Throughput(available_flops=50.0, world_size=2, window_size=3)
    for step in range(1, 5):
        throughput.update(time=step * 2.0, batches=step, samples=step * 4, lengths=step * 40, flops=10)
    assert throughput.compute() == {
        "time": 8.0,
        "batches": 4,
        "samples": 16,
        "lengths": 160,
        "device/batches_per_sec": 0.5,
        "batches_per_sec": 1.0,
        "device/samples_per_sec": 2.0,
        "samples_per_sec": 4.0,
        "device/items_per_sec": 20.0,
        "items_per_sec": 40.0,
        "device/flops_per_sec": 5.0,
        "flops_per_sec": 10.0,
        "device/mfu": 0.1,
    }
    with pytest.raises(ValueError, match="a total never falls"):
        throughput.update(time=9.0, batches=3, samples=20, lengths=200)
    throughput.reset()
    throughput.update(time=1.0, batches=1, samples=1)
    assert throughput.compute() == {"time": 1.0, "batches": 1, "samples": 1}


def test_flops_are_those_of_forward_and_backward(installed):
    measure = installed("lightning.pytorch.utilities").measure_flops
    with torch.device("meta"):
        model, inputs = torch.nn.Linear(8, 4), torch.randn(2, 8)
    assert measure(model, lambda: model(inputs)) == 2 * 2 * 8 * 4
    assert measure(model, lambda: model(inputs), torch.sum) == 2 * (2 * 2 * 8 * 4)


def test_collectives_of_one_rank_and_of_a_group(installed):
    plugins = installed("lightning.fabric.plugins.collectives")
    tensor = torch.ones(2)
    alone = plugins.SingleDeviceCollective()
    assert alone.all_reduce(tensor) is tensor is alone.scatter(torch.zeros(2), [tensor])
    group = plugins.TorchCollective()
    group.setup(backend="gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert (group.rank, group.world_size, group.is_initialized()) == (0, 1, True)
        assert group.all_reduce(tensor, op="sum").tolist() == [1.0, 1.0]
        assert group.all_gather([torch.zeros(2)], tensor)[0].tolist() == [1.0, 1.0]
        assert group.all_gather_object([None], "object") == ["object"]
        with pytest.raises(core.ConfigurationError, match="op='median'"):
            group.all_reduce(tensor, op="median")
    finally:
        group.teardown()
    assert not group.is_initialized()


LOADERS = {
    "min_size": [("a1 b4", 0, 0), ("a2 b5", 1, 0)],
    "max_size": [("a1 b4", 0, 0), ("a2 b5", 1, 0), ("aNone b6", 2, 0)],
    "max_size_cycle": [("a1 b4", 0, 0), ("a2 b5", 1, 0), ("a1 b6", 2, 0)],
    "sequential": [("1", 0, 0), ("2", 1, 0), ("4", 0, 1), ("5", 1, 1), ("6", 2, 1)],
}


def test_a_combined_loader_gives_a_program_triples_and_a_trainer_batches(installed, pl, boring):
    kind = installed("lightning.pytorch.utilities").CombinedLoader
    for mode, expected in LOADERS.items():
        combined = kind({"a": iter_of(1, 2), "b": (iter_of(4, 5, 6),)}, mode)
        read = list(combined)
        together = mode != "sequential"
        shown = [(f"a{batch['a']} b{batch['b'][0]}" if together else str(batch), *rest) for batch, *rest in read]
        assert shown == expected
        assert next(iter(combined)) == read[0]

    seen = []

    class Model(boring.BoringModel):
        def training_step(self, batch, batch_idx):
            seen.append(sorted(batch))
            return super().training_step(batch["a"], batch_idx)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    data = [torch.randn(2, 32)]
    trainer = pl.Trainer(accelerator="cpu", fast_dev_run=True, **quiet)
    trainer.fit(Model(), kind({"a": iter_of(*data), "b": iter_of(*data)}), val_dataloaders=iter_of(*data))
    assert seen == [["a", "b"]]


def iter_of(*batches):
    return torch.utils.data.DataLoader(list(batches), batch_size=None)


def test_hyperparameters_as_loggers_take_them(installed):
    logger = installed("lightning.fabric.utilities.logger")
    nested = {"a": {"b": 1}, "c": [{"d": 2}], "e": [1, 2], "f": argparse.Namespace(g=3)}
    assert logger._flatten_dict(nested) == {"a/b": 1, "c/0/d": 2, "e": [1, 2], "f/g": 3}
    assert logger._convert_params(None) == {}
    assert logger._sanitize_callable_params({"a": dict, "b": lambda: 3, "c": 4}) == {"a": "dict", "b": 3, "c": 4}
    assert logger._sanitize_params({"a": [1], "b": 0.5}) == {"a": "[1]", "b": 0.5}
    assert logger._add_prefix({"a": 1}, "own", "-") == {"own-a": 1}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_module_becomes_torchscript_before_and_after_it_was_trained(pl, boring, tmp_path):
    model = boring.BoringModel()
    model.example_input_array = torch.randn(1, 32)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    for method in ("script", "trace"):
        model.train().to_torchscript(tmp_path / f"{method}.pt", method=method)
        loaded = torch.jit.load(tmp_path / f"{method}.pt")
        torch.testing.assert_close(loaded(model.example_input_array), model(model.example_input_array))
        assert model.training
        pl.Trainer(accelerator="cpu", fast_dev_run=True, **quiet).fit(model)
    with pytest.raises(core.ConfigurationError, match="pass example_inputs="):
        boring.BoringModel().to_torchscript(method="trace")


def test_early_stopping_names_its_reason(installed, pl, boring):
    callbacks = installed("lightning.pytorch.callbacks.early_stopping")
    reasons = callbacks.EarlyStoppingReason
    for options, reason in (
        ({"patience": 1}, reasons.PATIENCE_EXHAUSTED),
        ({"stopping_threshold": 4.0}, reasons.STOPPING_THRESHOLD),
        ({"divergence_threshold": 2.0}, reasons.DIVERGENCE_THRESHOLD),
    ):

        class Model(boring.BoringModel):
            def on_validation_epoch_end(self):
                self.log("level", torch.tensor(3.0))

        stopping = callbacks.EarlyStopping("level", **options)
        assert stopping.stopping_reason is reasons.NOT_STOPPED
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        trainer = pl.Trainer(accelerator="cpu", max_epochs=3, limit_train_batches=1, callbacks=stopping, **quiet)
        trainer.fit(Model())
        assert stopping.stopping_reason is reason
        assert "level" in stopping.stopping_reason_message
        again = callbacks.EarlyStopping("level", **options)
        again.load_state_dict(stopping.state_dict())
        assert again.stopping_reason is reason
