"""Training on simulated IPUs equals that on one CPU, in every way that runs; and what can't run is
refused.
"""

import functools

import pytest
import torch
from ipu_runs import GLOBAL_BATCH_SIZE, QUIET, Net, assert_same, make_data, train
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import (
    Callback,
    ConfigurationError,
    DeviceError,
    Fabric,
    ModuleError,
    Trainer,
    UnsupportedError,
)
from core.callbacks import ModelCheckpoint
from core_ipu import IPUStrategy

FIT = {**QUIET, "limit_val_batches": 0}


@functools.cache
def on_cpu(accumulated=1, **options):
    number = 10 * accumulated
    return train(
        accelerator="cpu",
        num_batches=number,
        accumulate_grad_batches=accumulated,
        module=Net(**options),
    )


def on_ipus(devices, accumulate_grad_batches=1, strategy=None, module=None, **options):
    return train(
        accelerator="ipu",
        devices=devices,
        strategy=strategy or IPUStrategy(**options),
        batch_size=GLOBAL_BATCH_SIZE // devices,
        num_batches=10 * accumulate_grad_batches,
        accumulate_grad_batches=accumulate_grad_batches,
        module=module,
    )


@pytest.mark.parametrize(("devices", "accumulated", "iterations"), [(1, 1, 5), (4, 2, 5)])
def test_it_equals_one_cpu_over_twenty_steps(devices, accumulated, iterations):
    """Weights, losses, learning rates, moments: with validation, of which the last batch is
    smaller, in between.
    """
    found = on_ipus(devices, accumulate_grad_batches=accumulated, device_iterations=iterations)
    expected = on_cpu(accumulated)
    assert_same(found, expected)
    assert found[0].global_step == 20
    assert found[1].num_traces == 1, "the step is traced once, and not run by Python"
    if accumulated == 1:
        means = torch.tensor(expected[2].losses).view(-1, iterations).mean(1).tolist()
        assert found[2].losses == pytest.approx(means, abs=1e-5), (
            "of several updates in a call, their mean"
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
        pytest.param(torch.optim.Adam, {"betas": (0.8, 0.9)}, marks=pytest.mark.slow),
        pytest.param(
            torch.optim.RMSprop, {"momentum": 0.5, "centered": True}, marks=pytest.mark.slow
        ),
    ],
    ids=["nesterov", "adam", "rmsprop"],
)
def test_every_optimizer_equals_torchs(kind, options):
    assert_same(on_ipus(2, module=Net(kind, **options)), on_cpu(kind=kind, **options))


def test_outputs_and_predictions_keep_their_order():
    class Last(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            torch.testing.assert_close(outputs["size"], batch[0].sum(1))
            self.called = True

    last, module = Last(), Net()
    trainer = Trainer(accelerator="ipu", devices=4, max_epochs=1, callbacks=last, **FIT)
    trainer.fit(module, DataLoader(make_data(64), batch_size=2))
    assert last.called
    data = make_data(23)  # two calls of eight, and seven rows that are computed on the host
    predicted = torch.cat(trainer.predict(module, DataLoader(data, batch_size=2)))
    with torch.no_grad():
        torch.testing.assert_close(predicted, module(data.tensors[0]))


def test_weights_that_are_changed_on_the_host_reach_the_device():
    class Halves(Callback):
        def __init__(self, synchronizes=True):
            self.synchronizes = synchronizes

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 3:
                if self.synchronizes:
                    trainer.strategy.synchronize_model()
                with torch.no_grad():
                    module.layers[0].weight.mul_(0.5)

    def run(accelerator, **options):
        module = Net()
        trainer = Trainer(
            accelerator=accelerator, devices=1, max_epochs=1, callbacks=Halves(**options), **FIT
        )
        trainer.fit(module, DataLoader(make_data(64), batch_size=8))
        return module.state_dict()

    torch.testing.assert_close(run("ipu"), run("cpu"), atol=2e-6, rtol=2e-6)
    with pytest.raises(
        ConfigurationError,
        match=r"'layers\.0\.weight' was changed on the host.*synchronize_model\(\)",
    ):
        run("ipu", synchronizes=False)


def test_what_is_frozen_changes_between_epochs_only():
    class Thaws(Net):
        def __init__(self):
            super().__init__()
            self.layers[0].requires_grad_(False)

        def on_train_epoch_start(self):
            if self.trainer.current_epoch == 1:
                self.layers[0].requires_grad_(True)

    class ThawsAmidst(Thaws):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.layers[0].requires_grad_(True)

    assert_same(on_ipus(2, module=Thaws()), train(accelerator="cpu", module=Thaws()))
    with pytest.raises(
        ConfigurationError, match=r"'layers\.0\.weight' was unfrozen between two steps.*epoch_start"
    ):
        on_ipus(2, module=ThawsAmidst())


def test_options_of_poptorch_take_the_place_of_ours():
    import poptorch

    options = poptorch.Options().deviceIterations(5).replicationFactor(2)
    options.Training.gradientAccumulation(2)
    strategy = IPUStrategy(
        training_opts=options, inference_opts=poptorch.Options().replicationFactor(2)
    )
    trainer, module, records = train(
        accelerator="ipu", devices=2, strategy=strategy, batch_size=4, num_batches=20
    )
    assert_same((trainer, module, records), on_cpu(2))
    assert options.output_mode == poptorch.OutputMode.Default, (
        "the user's own options stay as they are"
    )


def test_the_rest_of_an_epoch_is_left_out_with_a_warning():
    loader = DataLoader(make_data(35), batch_size=2)
    trainer = Trainer(accelerator="ipu", devices=4, max_epochs=1, **FIT)
    with pytest.warns(
        UserWarning, match=r"here 4 x 2 samples: the last 3 of 35 samples of an epoch are left out"
    ):
        trainer.fit(Net(), loader)
    assert trainer.global_step == 4
    Trainer(accelerator="ipu", devices=4, max_epochs=1, **FIT).fit(
        Net(), DataLoader(make_data(35), batch_size=2, drop_last=True)
    )


def test_other_loaders_are_joined_too():
    class Rows(IterableDataset):
        def __iter__(self):
            return iter(make_data(64))

    expected = None
    for loader in (
        DataLoader(make_data(64), batch_size=2),
        DataLoader(Rows(), batch_size=2),
        list(DataLoader(make_data(64), batch_size=2)),
    ):
        module = Net()
        trainer = Trainer(accelerator="ipu", devices=4, max_epochs=1, **FIT)
        trainer.fit(module, loader)
        assert trainer.global_step == 8
        expected = expected or module.state_dict()
        torch.testing.assert_close(module.state_dict(), expected, atol=0, rtol=0)


def test_workers_that_persist_learn_of_the_epoch():
    class Epochs(TensorDataset):
        def set_epoch(self, epoch):
            self.tensors[0].fill_(epoch)

    class Keeps(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            means.append(float(batch[0].mean()))

    means, data = [], Epochs(*make_data(8).tensors)
    trainer = Trainer(accelerator="ipu", devices=1, max_epochs=3, callbacks=[Keeps()], **FIT)
    trainer.fit(Net(), DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True))
    assert means == [0, 1, 2]


def test_a_batch_with_other_keys_in_front_is_refused():
    """Its tensors have the compiled shapes, and would change places."""

    class Named(Net):
        def training_step(self, batch):
            return (self(batch["x"]) - batch["y"][:, :2]).square().mean()

    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    trainer = Trainer(accelerator="ipu", devices=1, max_epochs=1, **FIT)
    with pytest.raises(ConfigurationError, match=r"the same in another order, .* \(dict\)"):
        trainer.fit(Named(), [{"x": x, "y": y}, {"y": y, "x": x}])


def test_ipus_are_free_after_a_run_and_after_an_exception():
    from poptorch.device import POOL

    class Fails(Net):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert POOL.in_use == 4
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        on_ipus(4, module=Fails())
    assert POOL.in_use == 0
    on_ipus(4)
    assert POOL.in_use == 0


# what is refused ----------------------------------------------------------------------------------


def assert_refused(error, text, module=Net, device_iterations=1, **options):
    options = {"accelerator": "ipu", "devices": 1, "max_epochs": 1, **FIT, **options}
    with pytest.raises(error, match=text):
        Trainer(**{"strategy": IPUStrategy(device_iterations=device_iterations)} | options).fit(
            module(), DataLoader(make_data(32), batch_size=8)
        )


def test_backward_and_steps_by_hand_are_refused():
    class ByHand(Net):
        automatic_optimization = False

    assert_refused(
        UnsupportedError, "IPUStrategy can't leave backward and the optimizers", module=ByHand
    )


def test_two_optimizers_are_refused():
    class WithTwo(Net):
        def configure_optimizers(self):
            return [
                torch.optim.SGD(self.parameters(), lr=0.1),
                torch.optim.SGD(self.parameters(), lr=0.1),
            ]

    assert_refused(ModuleError, "2 optimizers", module=WithTwo)


def test_a_hook_within_the_step_is_refused():
    class Hooked(Net):
        def on_before_optimizer_step(self, optimizer):
            """No place for it."""

    assert_refused(UnsupportedError, "Hooked has the hook on_before_optimizer_step", module=Hooked)


def test_a_step_that_uses_the_number_of_its_batch_is_refused():
    class UsesNumber(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx % 2:
                return None
            return super().training_step(batch)

    assert_refused(UnsupportedError, "uses batch_idx or dataloader_idx", module=UsesNumber)


def test_a_step_without_a_loss_is_refused():
    class ReturnsNothing(Net):
        def training_step(self, batch):
            return None

    assert_refused(
        ModuleError, "training_step returned None; a compiled step needs", module=ReturnsNothing
    )


def test_a_scheduler_by_step_is_refused_where_a_call_makes_several_steps():
    class SchedulesSteps(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    assert_refused(
        ConfigurationError, "interval='step'", module=SchedulesSteps, device_iterations=2
    )


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"max_steps": 5, "device_iterations": 2},
            ConfigurationError,
            "max_steps=5, and IPUStrategy makes 2",
        ),
        (
            {"module": lambda: Net(torch.optim.Adagrad)},
            UnsupportedError,
            "Adagrad: IPUs compute the update",
        ),
        ({"module": lambda: Net(amsgrad=True)}, UnsupportedError, r"AdamW\(amsgrad=True\)"),
        (
            {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
            UnsupportedError,
            "Use 'norm'",
        ),
        (
            {"precision": "bf16-mixed"},
            ConfigurationError,
            "on IPUs use one of '32-true', '16-true'",
        ),
        (
            {"module": lambda: Net().double()},
            ConfigurationError,
            r"'layers\.0\.weight' is of float64",
        ),
        ({"devices": 3}, DeviceError, r"powers of two, and 3 is none\. Use devices=2"),
        ({"devices": [1]}, DeviceError, r"PopTorch chooses the IPUs itself\. Write devices=1"),
        ({"devices": 32}, DeviceError, "there are 16 here"),
        (
            {"strategy": "ddp"},
            ConfigurationError,
            "'ddp' computes with tensors .* strategy='ipu_strategy'",
        ),
        (
            {"device_iterations": 0},
            ConfigurationError,
            r"device_iterations=0\): expected an integer",
        ),
    ],
    ids=[
        "steps",
        "optimizer",
        "amsgrad",
        "by value",
        "precision",
        "float64",
        "three",
        "which",
        "too many",
        "ddp",
        "iterations",
    ],
)
def test_what_can_not_run_is_refused_with_the_reason(options, error, text):
    assert_refused(error, text, **options)


def test_two_places_that_say_the_same_are_refused():
    import poptorch

    accumulates = poptorch.Options()
    accumulates.Training.gradientAccumulation(2)
    with pytest.raises(
        ConfigurationError, match=r"gradientAccumulation\(2\), and accumulate_grad_batches=4"
    ):
        on_ipus(1, training_opts=accumulates, accumulate_grad_batches=4)
    with pytest.raises(
        ConfigurationError, match=r"replicationFactor\(1\), and devices=4 .* are 4 replicas"
    ):
        on_ipus(4, training_opts=poptorch.Options())
    with pytest.raises(ConfigurationError, match=r"device_iterations=2\), and training_opts say 1"):
        IPUStrategy(device_iterations=2, training_opts=poptorch.Options())


def test_a_cpu_and_a_loop_by_hand_are_refused():
    with pytest.raises(
        ConfigurationError, match="IPUStrategy trains on IPUs, and accelerator='cpu'"
    ):
        Trainer(accelerator="cpu", strategy="ipu_strategy", **QUIET)
    fabric, module = Fabric(accelerator="ipu", devices=1), Net()
    with pytest.raises(UnsupportedError, match="no training in a loop of your own"):
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    model, inputs = fabric.setup(module), torch.randn(4, 6)
    torch.testing.assert_close(model(inputs).detach(), module.layers(inputs).detach())
    fabric.teardown()


def test_model_checkpoint_saves_what_the_device_has(tmp_path):
    saves = ModelCheckpoint(tmp_path, filename="best", monitor="error")
    module = Net()
    trainer = Trainer(
        accelerator="ipu",
        devices=2,
        max_epochs=2,
        callbacks=saves,
        **{**QUIET, "enable_checkpointing": True},
    )
    trainer.fit(
        module, DataLoader(make_data(64), batch_size=4), DataLoader(make_data(64), batch_size=4)
    )
    loaded = Net()
    [metrics] = Trainer(accelerator="cpu", **QUIET).validate(
        loaded, DataLoader(make_data(64), batch_size=4), ckpt_path=saves.best_model_path
    )
    assert metrics["error"] == pytest.approx(float(saves.best_model_score), abs=1e-5)
