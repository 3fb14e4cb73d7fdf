"""Errors before anything runs: each says what was expected, what came, and what to do."""

import re
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from core import (
    Callback,
    Capability,
    ConfigurationError,
    LaunchError,
    Module,
    ModuleError,
    Strategy,
    UnsupportedError,
)
from core.callbacks import (
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    StochasticWeightAveraging,
)
from support.small_nets import Net, batches, fit, quiet_trainer


class Missing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)


def without(name, base=Missing):
    methods = {"training_step": Net.training_step, "configure_optimizers": Net.configure_optimizers}
    return type("Missing", (base,), {key: value for key, value in methods.items() if key != name})()


# what spawned processes need ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    ["module.helper.lock", "trainer._module_callbacks._without[0].lock", "module.helper['lock']"],
)
def test_what_cannot_be_pickled_is_named_by_its_attribute(place):
    net, callback, lock = Net(), Callback(), threading.Lock()

    class LeavesOut:
        def __init__(self):
            self.lock = threading.Lock()

        def __getstate__(self):
            return {}

    callback.left_out = LeavesOut()
    if "callbacks" in place:
        callback.lock = lock
    else:
        net.helper = {"lock": lock} if "['" in place else SimpleNamespace(lock=lock)
    message = (
        rf"need, and run\.{re.escape(place)} can't be pickled: cannot pickle '_thread\.lock' "
        r"object\."
    )
    with pytest.raises(LaunchError, match=message):
        fit(net, strategy="ddp_spawn", devices=2, callbacks=[callback])


# the module ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["training_step", "configure_optimizers"])
@pytest.mark.parametrize("base", [Missing, Module])
def test_a_missing_method(name, base):
    with pytest.raises(
        ModuleError, match=rf"Missing has no {name}\(\), which fit needs. Define it\.$"
    ):
        fit(without(name, base))


def test_a_misspelt_method():
    module = without("training_step")
    type(module).trainning_step = lambda self, batch: None
    with pytest.raises(
        ModuleError,
        match=r"has no training_step\(\).* Did you mean 'trainning_step'\?",
    ):
        fit(module)


@pytest.mark.parametrize(
    ("given", "described"),
    [
        (batches(), "an object of type list"),
        (Net, r"the class Net \(did you mean Net\(\)\?\)"),
        (None, "an object of type NoneType"),
    ],
)
def test_something_that_is_no_module(given, described):
    with pytest.raises(
        ModuleError,
        match=rf"fit got {described}.*; expected a core.Module, or another nn.Module, and",
    ):
        fit(given)


def test_a_missing_validation_step():
    with pytest.raises(
        ModuleError, match=r"Net has no validation_step\(\), which validation during fit needs"
    ):
        fit(Net(), batches(), batches())
    with pytest.raises(ModuleError, match=r"Net has no validation_step\(\), which validate needs"):
        quiet_trainer().validate(Net(), batches())


def test_a_validation_step_without_data():
    class Validating(Net):
        def validation_step(self, batch):
            pass

    with pytest.warns(
        UserWarning,
        match=r"Validating has a validation_step\(\), and no validation loader was given",
    ):
        fit(Validating())
    fit(Validating(), limit_val_batches=0)


class Fixed(Net):
    def configure_optimizers(self):
        return None


def test_training_without_an_optimizer():
    module = Fixed()
    before = module.layer.weight.clone()
    with pytest.warns(
        UserWarning,
        match="Fixed.configure_optimizers returned no optimizer: training without one, no",
    ):
        trainer = fit(module)
    assert torch.equal(module.layer.weight, before)
    assert trainer.global_step == 0
    with pytest.raises(
        ConfigurationError,
        match=r"max_steps=5 counts optimizer steps, and .* returned no optimizer",
    ):
        fit(Fixed(), max_steps=5, max_epochs=-1)


def test_without_an_optimizer_nor_a_graph():
    module, seen = Fixed(), []
    module.training_step = lambda batch: seen.append(batch) or torch.zeros(())
    with pytest.warns(UserWarning, match="training without one"):
        fit(module)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (1.5, "float 1.5.*; expected a scalar tensor, a dict"),
        ({"los": torch.ones(())}, r"a dict with \['los'\].*; expected a scalar tensor, a dict"),
        ({"loss": 2}, r"dict {'loss': 2}.*; expected a scalar tensor, a dict"),
        (
            torch.ones(3, requires_grad=True),
            r"a tensor of shape \(3,\).*; expected a scalar tensor, a dict",
        ),
        (
            {"loss": torch.ones(2, 2, requires_grad=True)},
            r"a tensor of shape \(2, 2\).*; expected a scalar tensor",
        ),
        (
            torch.ones(()),
            r"a loss without a graph, so that nothing can be learned.*don't detach it",
        ),
    ],
)
def test_a_wrong_return_type(output, described):
    module = Net()
    module.training_step = lambda batch: output
    with pytest.raises(ModuleError, match=f"training_step returned {described}"):
        fit(module)


def test_a_step_of_the_modules_own_in_automatic_optimization():
    module = Net()
    module.training_step = lambda batch: module.optimizers().step()
    with pytest.raises(
        ModuleError, match=r"training_step steps an optimizer, and so does the loop"
    ):
        fit(module)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_element(shape):
    module = Net()
    module.training_step = lambda batch: module.layer(batch).sum().reshape(shape)
    assert fit(module).global_step == 3


class Skipping(Net):
    """Returns no loss for some batches."""

    def __init__(self, *skipped):
        super().__init__()
        self.skipped = skipped

    def training_step(self, batch, batch_idx):
        return None if batch_idx in self.skipped else super().training_step(batch, batch_idx)


def test_none_skips_a_batch():
    with pytest.warns(
        UserWarning, match="Skipping.training_step returned None for batch 1 of epoch 0: the"
    ) as caught:
        assert fit(Skipping(1, 2), max_epochs=2).global_step == 2
    assert len(caught) == 1
    assert "If that isn't meant, end it with `return loss`" in str(caught[0].message)


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2}, {"max_epochs": -1, "max_steps": 3}]
)
def test_a_forgotten_return(options):
    seen = (
        "Skipping.training_step returned None for all 3 batches of epoch 0, so that nothing was "
        "learned. Expected"
    )
    with (
        pytest.warns(UserWarning, match="returned None for batch 0 of epoch 0"),
        pytest.raises(
            ModuleError,
            match=f"{seen} a scalar tensor.* `return loss`; or set self.automatic_optimization",
        ),
    ):
        fit(Skipping(0, 1, 2), **options)


def evaluating(module):
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters())
    return module


def test_none_for_an_optimizer_that_evaluates_the_loss():
    with pytest.raises(
        ModuleError, match="None for batch 1 of epoch 0, and LBFGS evaluates the loss inside of its"
    ):
        fit(evaluating(Skipping(1)))


class Manual(Net):
    automatic_optimization = False


def test_manual_optimization_that_steps_nothing():
    message = (
        "No optimizer has updated parameters in the 3 batches of epoch 0: Manual has "
        "automatic_optimization = Fal"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        fit(Manual(), max_epochs=2)
    assert len(caught) == 1


def test_none_where_nothing_could_be_learned():
    module = Skipping(0, 1, 2)
    module.requires_grad_(False)
    fit(module)  # a warning is an error
    module.configure_optimizers = lambda: None
    with pytest.warns(UserWarning, match="training without one") as caught:
        fit(module)
    assert len(caught) == 1


# callbacks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "options"),
    [
        (LearningRateMonitor(), {}),
        (GradientAccumulationScheduler({1: 2}), {"accumulate_grad_batches": 2}),
        (StochasticWeightAveraging(0.1, 0.5), {"max_epochs": -1, "max_steps": 3}),
    ],
)
def test_a_callback_that_cannot_work_says_so_before_processes_are_made(callback, options):
    begun = []
    begins = LambdaCallback(setup=lambda *_: begun.append(True))
    with pytest.raises(ConfigurationError, match=type(callback).__name__):
        fit(Net(), callbacks=[begins, callback], **options)
    assert begun == []


# arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"deterministic": True, "benchmark": True},
            "deterministic=True and benchmark=True contradict each other: .* Leave one of them out",
        ),
        ({"deterministic": "yes"}, "deterministic='yes': expected True, False, or 'warn'"),
        ({"gradient_clip_val": -1}, "gradient_clip_val=-1: expected a positive number, or None"),
        (
            {"gradient_clip_algorithm": "max"},
            "gradient_clip_algorithm='max': expected 'norm' or 'value'",
        ),
        (
            {"accumulate_grad_batches": 0},
            "accumulate_grad_batches=0: expected an integer of at least 1",
        ),
        (
            {"precision": "16-mixed"},
            "precision='16-mixed' is for GPUs, and this run is on a CPU.* Use "
            "precision='bf16-mixed'",
        ),
        (
            {"compile": "max-autotune"},
            "compile='max-autotune': expected True, False, or a dict of torch.compile's",
        ),
        (
            {"compile": {"mod": "default"}},
            "compile has 'mod', which torch.compile doesn't take. Did you mean 'mode'",
        ),
        (
            {"compile": {"region": "units", "mod": 1}},
            "compile has 'mod', .*; and core takes 'region'",
        ),
        (
            {"callbacks": "early", "strategy": "auto"},
            r"Unknown event hooks 'early'.* Callbacks are passed as instances",
        ),
        (
            {"callbacks": [Callback], "strategy": "auto"},
            r"callbacks has the class Callback \(did you mean Callback\(\)\?\); expected",
        ),
    ],
)
def test_arguments_that_cannot_be_met(options, message):
    with pytest.raises(ConfigurationError, match=message):
        quiet_trainer(**options)


def test_sync_batchnorm_on_a_cpu():
    with pytest.raises(
        ConfigurationError,
        match=r"sync_batchnorm=True with DDPStrategy on the CPU: .*SyncBatchNorm",
    ):
        quiet_trainer(sync_batchnorm=True, strategy="ddp", devices=1)
    assert fit(Net(), sync_batchnorm=True).global_step == 3  # one device has nothing to synchronize


def test_an_optimizer_that_evaluates_the_loss_repeatedly():
    with pytest.raises(
        ConfigurationError,
        match="accumulate_grad_batches=2, and LBFGS evaluates the loss several tim",
    ):
        fit(evaluating(Net()), accumulate_grad_batches=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"accumulate_grad_batches": 2},
            "accumulate_grad_batches=2, and Manual has automatic_optimization=False",
        ),
        (
            {"gradient_clip_val": 1.0},
            r"gradient_clip_val=1.0, and Manual .* Call self.clip_gradients\(optimizer",
        ),
    ],
)
def test_manual_optimization_and_what_belongs_to_automatic(options, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(Manual(), **options)


# capabilities -------------------------------------------------------------------------------------


class Limited(Strategy):
    def __init__(self, capabilities=Capability.NONE):
        super().__init__()
        self.has = capabilities

    @property
    def capabilities(self):
        return self.has


@pytest.mark.parametrize(
    ("module", "options", "message", "capability"),
    [
        (
            Manual(),
            {},
            "Manual has automatic_optimization=False, and Limited can't",
            Capability.MANUAL_OPTIMIZATION,
        ),
        (
            Net(),
            {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
            r"'value': Limited can't clip gradients by value. Use 'norm'",
            Capability.CLIP_BY_VALUE,
        ),
    ],
)
def test_what_needs_a_capability(module, options, message, capability):
    with pytest.raises(UnsupportedError, match=message) as raised:
        fit(module, strategy=Limited(), **options)
    assert raised.value.capability is capability


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        (Capability.OWNS_STEP, "optimizer_step"),
        (Capability.OWNS_STEP, "backward"),
        (Capability.OWNS_CLIPPING, "configure_gradient_clipping"),
        (Capability.OWNS_SCHEDULER, "lr_scheduler_step"),
    ],
)
def test_an_override_of_what_the_strategy_does_itself(capability, name):
    module = type("Own", (Net,), {name: print})()
    with pytest.raises(
        UnsupportedError, match=f"Own overrides {name}, and Limited does that inside its own step"
    ):
        fit(module, strategy=Limited(capability))


# what nothing trains ------------------------------------------------------------------------------


class Holding(Net):
    """Has what `hold` gives it, and trains the parameters whose names have a prefix."""

    def __init__(self, hold, trained=""):
        super().__init__()
        hold(self)
        self.trained = trained

    def configure_optimizers(self):
        named = self.named_parameters()
        return torch.optim.SGD(
            [value for name, value in named if name.startswith(self.trained)], lr=0.1
        )


def hidden(place):
    return lambda module: setattr(module, "blocks", place(nn.Linear(1, 1)))


@pytest.mark.parametrize(
    "hold",
    [
        hidden(lambda layer: [layer]),
        hidden(lambda layer: {"first": (layer,)}),
        hidden(lambda layer: [[1, "text"], [layer.weight]]),
        hidden(lambda _: torch.zeros(2, requires_grad=True)),
    ],
)
def test_layers_that_parameters_does_not_find_are_named(hold):
    with pytest.warns(
        UserWarning, match=r"Holding will not train 'blocks': .* nn.ModuleList or .*\(False\)"
    ) as caught:
        fit(Holding(hold))
    assert len(caught) == 1


def test_parameters_that_no_optimizer_holds_are_named():
    module = Holding(lambda module: setattr(module, "head", nn.Linear(1, 1)), trained="head")
    message = r"not train 'layer.weight', 'layer.bias': no optimizer .* Add it to one. If"
    with pytest.warns(UserWarning, match=message) as caught:
        fit(module)
    assert len(caught) == 1


def test_parameters_that_come_after_the_optimizers_are_named():
    class Late(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 0:
                self.late = nn.Linear(1, 1)
            return super().training_step(batch, batch_idx) + self.late(torch.ones(1)).sum()

    with pytest.warns(
        UserWarning, match=r"Late has made 'late.weight', 'late.bias' after its optimizers"
    ) as caught:
        fit(Late())
    assert len(caught) == 1


def _frozen(module):
    return module.requires_grad_(False)


def frozen_backbone(module):
    module.backbone = nn.Sequential(_frozen(nn.Linear(4, 4)), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    "hold",
    [
        hidden(lambda layer: [_frozen(layer)]),  # a teacher
        hidden(lambda layer: [layer.eval()]),
        hidden(lambda layer: [layer(torch.ones(1))]),  # outputs
        lambda module: setattr(module, "same", [module.layer]),
        lambda module: setattr(module, "frozen", _frozen(nn.Linear(1, 1))),
        lambda module: setattr(module, "numbers", [list(range(10**6))] * 2),
        frozen_backbone,  # its batch norm may be added later
    ],
)
def test_what_is_meant_is_not_warned_of(hold):
    fit(Holding(hold, trained="layer"))  # a warning is an error
