"""The forms of `configure_optimizers`, the steps of schedulers, and the parts of a step that a
module overrides.
"""

from functools import partial

import pytest
import torch
from torch.amp import GradScaler
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from core import ModuleError
from core.precision import MixedPrecision
from support.small_nets import Net, batches, quiet_trainer


def fit(module, *, num_batches=4, validation=None, **options):
    trainer = quiet_trainer(
        **{"max_epochs": 3, "limit_val_batches": 1.0 if validation else 0, **options}
    )
    trainer.fit(module, batches(num_batches), validation)
    return trainer


class Configured(Net):
    """Trains as `configure(module)` says, notes the learning rate of each step, and logs values to
    watch.
    """

    def __init__(self, configure):
        super().__init__()
        self.configure, self.rates = configure, []

    def configure_optimizers(self):
        return self.configure(self)

    def training_step(self, batch, batch_idx):
        self.log("falling", -float(self.global_step))
        self.log("mean", 1.0, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch):
        self.log("val_loss", 1.0)

    def on_before_optimizer_step(self, optimizer):
        self.rates.append(round(optimizer.param_groups[0]["lr"], 6))


def sgd(module, lr=1.0):
    return SGD(module.parameters(), lr=lr)


def halving(optimizer):
    return StepLR(optimizer, 1, gamma=0.5)


def rates(configure, **options):
    module = Configured(configure)
    fit(module, **options)
    return module.rates


BY_EPOCH = [1.0] * 4 + [0.5] * 4 + [0.25] * 4
CONSTANT = [1.0] * 12


# what may be returned -----------------------------------------------------------------------------


class ByEpoch:
    """A scheduler whose `step` wants more than the loop has."""

    def step(self, epoch, value):
        pass


def in_dict(module, **options):
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halving(optimizer), **options}}


def with_schedulers(make):
    def configure(module):
        optimizer = sgd(module)
        return make(optimizer)

    return configure


@pytest.mark.parametrize(
    ("configure", "expected"),
    [
        (sgd, CONSTANT),
        (lambda module: {"optimizer": sgd(module)}, CONSTANT),
        (lambda module: ([sgd(module)], []), CONSTANT),
        (with_schedulers(lambda optimizer: ([optimizer], [halving(optimizer)])), BY_EPOCH),
        (
            with_schedulers(lambda optimizer: ([optimizer], [{"scheduler": halving(optimizer)}])),
            BY_EPOCH,
        ),
        (
            with_schedulers(
                lambda optimizer: {"optimizer": optimizer, "lr_scheduler": halving(optimizer)}
            ),
            BY_EPOCH,
        ),
        (in_dict, BY_EPOCH),
        (lambda module: [in_dict(module)], BY_EPOCH),
        (lambda module: in_dict(module, frequency=2), [1.0] * 8 + [0.5] * 4),
        (lambda module: in_dict(module, interval="step"), [0.5**step for step in range(12)]),
        (
            lambda module: in_dict(module, interval="step", frequency=5),
            [1.0] * 5 + [0.5] * 5 + [0.25] * 2,
        ),
    ],
)
def test_forms(configure, expected):
    assert rates(configure) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda module: 1,
            "configure_optimizers returned int 1; expected an Optimizer; a list of them",
        ),
        (lambda module: [1], r"returned list of \(int\); expected an Optimizer"),
        (
            lambda module: Adam,
            r"returned the class Adam, and no Adam\(...\); expected an Optimizer; a list of them",
        ),
        (
            lambda module: {"lr_scheduler": halving(sgd(module))},
            "a dict whose 'optimizer' is NoneType None; expected an Optimizer there",
        ),
        (
            lambda module: {"optimiser": sgd(module)},
            r"a dict with 'optimiser'; expected some of \['lr_scheduler', ",
        ),
        (lambda module: {"optimizer": 1}, "whose 'optimizer' is int 1; expected an Optimizer"),
        (
            lambda module: in_dict(module, every=2),
            "a scheduler's dict with 'every'; expected some of",
        ),
        (
            lambda module: in_dict(module, interval="batch"),
            "interval is 'batch'; expected 'step' or 'epoch'",
        ),
        (
            lambda module: in_dict(module, frequency=0),
            "frequency is 0; expected an integer of at least 1",
        ),
        (
            lambda module: {"optimizer": sgd(module), "lr_scheduler": 1},
            "returned int 1 as a scheduler; expected an LR",
        ),
        (
            lambda module: {"optimizer": sgd(module), "lr_scheduler": StepLR},
            r"returned the class StepLR, and no StepLR\(...\) as a scheduler; expected an LR",
        ),
        (
            lambda module: {"optimizer": sgd(module), "lr_scheduler": ByEpoch()},
            r"calls ByEpoch.step\(\), which can't be: missing .*'epoch'. Step it yourself: define "
            r"lr_scheduler_step",
        ),
        (
            lambda module: in_dict(
                module, scheduler=ByEpoch(), monitor="x", reduce_on_plateau=True, interval="step"
            ),
            r"calls ByEpoch.step\(metric\), which can't be: missing .*'value'",
        ),
        (
            lambda module: {
                "optimizer": sgd(module),
                "lr_scheduler": ReduceLROnPlateau(sgd(module)),
            },
            "ReduceLROnPlateau needs a metric to watch: return",
        ),
        (
            lambda module: {"optimizer": sgd(module), "lr_scheduler": halving(sgd(module))},
            "returned a StepLR of an optimizer that it did not return",
        ),
    ],
)
def test_what_is_of_no_known_form(returned, message):
    with pytest.raises(ModuleError, match=message):
        fit(Configured(returned))


# schedulers ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:No optimizer has updated parameters")
@pytest.mark.parametrize("is_manual", [False, True])
def test_a_scheduler_that_the_user_steps_may_take_anything(is_manual):
    module = Configured(lambda module: {"optimizer": sgd(module), "lr_scheduler": ByEpoch()})
    if is_manual:
        module.automatic_optimization, module.training_step = False, lambda batch, batch_idx: None
    else:
        module.lr_scheduler_step = lambda scheduler, metric: scheduler.step(1, 0.0)
    fit(module)


def plateau(module, monitor, mode="min", **options):
    optimizer = sgd(module)
    scheduler = ReduceLROnPlateau(optimizer, mode=mode, patience=0, factor=0.5, threshold=0.0)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": scheduler, "monitor": monitor, **options},
    }


def beside(module):
    returned = plateau(module, None, "max")
    return {
        "optimizer": returned["optimizer"],
        "lr_scheduler": returned["lr_scheduler"]["scheduler"],
        "monitor": "falling",
    }


@pytest.mark.parametrize(
    ("configure", "expected"),
    [
        (lambda module: plateau(module, "falling"), CONSTANT),
        (lambda module: plateau(module, "falling", "max"), [1.0] * 8 + [0.5] * 4),
        (beside, [1.0] * 8 + [0.5] * 4),
        (
            lambda module: plateau(module, "falling", "max", interval="step", frequency=3),
            [1.0] * 6 + [0.5] * 3 + [0.25] * 3,
        ),
        (lambda module: plateau(module, "nothing", strict=False), CONSTANT),
        # The mean of an epoch counts once, though steps are due.
        (lambda module: plateau(module, "mean", interval="step"), [1.0] * 8 + [0.5] * 4),
    ],
)
def test_a_monitored_metric(configure, expected):
    assert rates(configure) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("scheduled", "options", "expected"),
    [
        ({"interval": "step"}, {}, [1.0] * 8 + [0.5] * 4),
        (
            {"interval": "step", "frequency": 3},
            {"val_check_interval": 3},
            [1.0] * 7 + [0.5] * 4 + [0.25],
        ),
        ({"interval": "step", "frequency": 2}, {"val_check_interval": 4}, [1.0] * 8 + [0.5] * 4),
        (
            {},
            {"check_val_every_n_epoch": 2, "max_epochs": 5, "num_batches": 2},
            [1.0] * 8 + [0.5] * 2,
        ),
    ],
)
def test_each_validation_counts_once(scheduled, options, expected):
    """The loss doesn't fall, so that each but the first halves the rate; the steps in between say
    nothing new.
    """
    assert (
        rates(
            lambda module: plateau(module, "val_loss", **scheduled),
            validation=batches(1),
            **options,
        )
        == expected
    )


def test_a_metric_that_was_never_logged():
    with pytest.raises(
        ModuleError,
        match=r"monitors 'val_loss', which was not logged; logged were \['falling', 'mean'\]. Call",
    ):
        fit(Configured(lambda module: plateau(module, "val_loss")))


class Own:
    """Not one of torch's, and wants the metric."""

    def __init__(self, optimizer):
        self.seen = ()

    def step(self, value):
        self.seen = (*self.seen, value)

    def state_dict(self):
        return {}


class Watching(StepLR):
    seen = ()

    def __init__(self, optimizer):
        super().__init__(optimizer, 1)

    def step(self, value=None):
        self.seen = (*self.seen, value)
        super().step()


@pytest.mark.parametrize(("kind", "options"), [(Own, {}), (Watching, {"reduce_on_plateau": True})])
def test_a_scheduler_that_wants_the_metric(kind, options):
    def configure(module):
        optimizer = sgd(module)
        module.scheduler = kind(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": module.scheduler, "monitor": "falling", **options},
        }

    module = Configured(configure)
    fit(module)
    assert module.scheduler.seen[-3:] == (-3.0, -7.0, -11.0)


def test_lr_scheduler_step_is_overridden():
    class Own(Configured):
        def lr_scheduler_step(self, scheduler, metric):
            calls.append((type(scheduler).__name__, metric))
            super().lr_scheduler_step(scheduler, metric)

    def configure(module):
        optimizer = sgd(module)
        return [optimizer], [
            halving(optimizer),
            {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "falling"},
        ]

    calls, module = [], Own(configure)
    fit(module, max_epochs=2)
    assert calls == [
        ("StepLR", None),
        ("ReduceLROnPlateau", -3.0),
        ("StepLR", None),
        ("ReduceLROnPlateau", -7.0),
    ]
    assert module.rates == [1.0] * 4 + [0.5] * 4


def test_a_scheduler_whose_metric_may_be_missing_holds_up_no_other():
    class Own(Configured):
        def lr_scheduler_step(self, scheduler, metric):
            calls.append((self.trainer.global_step, metric))

        def on_train_epoch_end(self):
            calls.append("epoch")

    def configure(module):
        optimizer = sgd(module)
        missing = {
            "scheduler": ReduceLROnPlateau(optimizer),
            "monitor": "nothing",
            "strict": False,
            "interval": "step",
        }
        return [optimizer], [
            missing,
            {**missing, "scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"},
        ]

    calls = []
    fit(Own(configure), max_epochs=2, validation=batches(1))
    assert calls == [(4, 1.0), "epoch", (8, 1.0), "epoch"]


# parts of a step ----------------------------------------------------------------------------------


def weights_of(module, **options):
    trainer = fit(module, max_epochs=2, **options)
    return module.layer.weight.detach().clone(), trainer.global_step


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"precision": "bf16-mixed"}],
    ids=["plain", "accumulated", "clipped", "mixed"],
)
def test_overrides_that_add_nothing_change_nothing(options):
    def noting(name):
        def override(self, *args):
            calls.add(name)
            getattr(Net, name)(self, *args)

        return override

    calls = set()
    overrides = ["backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping"]
    overriding = type("Overriding", (Net,), {name: noting(name) for name in overrides})
    expected, num_steps = weights_of(Net(), **options)
    got, num_own_steps = weights_of(overriding(), **options)
    assert torch.equal(got, expected)
    assert num_own_steps == num_steps
    assert calls == set(overrides)


def test_backward_may_keep_the_graph():
    class Twice(Net):
        def backward(self, loss, *args, **kwargs):
            super().backward(loss, retain_graph=True)
            super().backward(loss)

    module, reference = Twice(), Net()
    assert not torch.equal(weights_of(module)[0], weights_of(reference)[0])


def test_optimizer_step_gets_where_it_is_and_may_leave_the_step_out():
    places = []

    class EverySecond(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            places.append((epoch, batch_idx))
            if batch_idx % 2:
                optimizer.step(closure=optimizer_closure)
            else:
                loss = optimizer_closure()
                assert loss.ndim == 0

    trainer = fit(EverySecond(), max_epochs=2)
    assert places == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert trainer.global_step == 4


def test_a_closure_that_is_not_called():
    class Forgetful(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step()

    with pytest.raises(
        ModuleError,
        match=r"Forgetful.optimizer_step did not call the closure, so there is no loss.* Call",
    ):
        fit(Forgetful())


def test_clipping_by_the_module():
    class Clipping(Net):
        def configure_gradient_clipping(
            self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None
        ):
            given.append((gradient_clip_val, gradient_clip_algorithm))
            self.clip_gradients(optimizer, gradient_clip_val=1e-3, gradient_clip_algorithm="value")

        def on_before_zero_grad(self, optimizer):
            largest.append(self.layer.weight.grad.abs().max().item())

    given, largest = [], []
    for options in (
        {},
        {"gradient_clip_val": 5.0},
        {"gradient_clip_val": 5.0, "gradient_clip_algorithm": "value"},
    ):
        fit(Clipping(), max_steps=1, **options)
    assert given == [(None, None), (5.0, "norm"), (5.0, "value")]
    assert largest == pytest.approx([1e-3] * 3)


def test_an_optimizer_that_needs_a_closure():
    class Evaluating(Net):
        evaluations = 0

        def training_step(self, batch, batch_idx=0):
            self.evaluations += 1
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=3, lr=0.1)

    def evaluate(batch):
        optimizer.zero_grad()
        loss = reference.training_step(batch)
        loss.backward()
        return loss

    module, reference = Evaluating(), Evaluating()
    optimizer = reference.configure_optimizers()
    for batch in batches(4):
        optimizer.step(partial(evaluate, batch))
    assert fit(module, max_epochs=1).global_step == 4
    assert torch.equal(module.layer.weight, reference.layer.weight)
    assert module.evaluations == reference.evaluations


def test_optimizers_that_step_in_backward():
    """Nothing is returned, and parameters change all the same."""

    class Inside(Net):
        def configure_optimizers(self):
            for parameter in self.parameters():
                optimizer = SGD([parameter], lr=0.01)

                def step(parameter, optimizer=optimizer):
                    optimizer.step()
                    optimizer.zero_grad()

                parameter.register_post_accumulate_grad_hook(step)

    with pytest.warns(UserWarning, match="training without one"):
        got, _ = weights_of(Inside())
    assert torch.equal(got, weights_of(Net())[0])


@pytest.mark.parametrize("way", ["training_step", "hook", "earlier batch"])
def test_a_second_backward_says_which_of_two_ways_to_write(way):
    class BackwardTwice(Net):
        """`way` names where the graph is used up before the loop's backward, or after it."""

        state = 0.0

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx) + self.state
            if way == "training_step":
                loss.backward()
            elif way == "earlier batch":
                self.state = loss
            return loss

        def on_before_backward(self, loss):
            if way == "hook":
                loss.backward()

    ways = "leave it out, and step.. and zero_grad..; or set self.automatic_optimization = False"
    with pytest.raises(ModuleError, match=rf"loss that BackwardTwice.training_step .* {ways}"):
        fit(BackwardTwice())


# manual optimization ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-6),
        ({"precision": "bf16-mixed"}, 1e-2),
        # With a scaler, as float16 has one: two optimizers, two losses.
        (
            {
                "plugins": MixedPrecision(
                    torch.bfloat16, scaler=GradScaler("cpu", init_scale=2.0**8)
                )
            },
            1e-2,
        ),
    ],
    ids=["full", "mixed", "scaled"],
)
def test_two_optimizers(options, tolerance):
    class Pair(Net):
        """Two optimizers that alternate, with gradients of one loss in both, as in a GAN."""

        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.second = torch.nn.Linear(4, 1)
            self.hooks = []

        def configure_optimizers(self):
            return SGD(self.layer.parameters(), lr=0.01), Adam(self.second.parameters(), lr=0.01)

        def losses(self, batch):
            yield (self.layer(batch) + self.second(batch)).pow(2).mean()
            yield (self.layer(batch).detach() - self.second(batch)).pow(2).mean()

        def training_step(self, batch, batch_idx):
            losses, parts = self.losses(batch), (self.layer, self.second)
            for optimizer, part in zip(self.optimizers(), parts, strict=True):
                with self.toggled_optimizer(optimizer):
                    assert {one for one in self.parameters() if one.requires_grad} == {
                        *part.parameters()
                    }
                    self.manual_backward(next(losses))
                    self.clip_gradients(optimizer, gradient_clip_val=1e3)
                    optimizer.step()
                    optimizer.zero_grad()

        def on_before_backward(self, loss):
            self.hooks.append("before backward")

        def on_after_backward(self):
            self.hooks.append("after backward")

        def on_before_optimizer_step(self, optimizer):
            self.hooks.append(type(optimizer).__name__)

    module, by_hand = Pair(), Pair()
    trainer = fit(module, max_epochs=1, **options)
    optimizers = by_hand.configure_optimizers()
    for batch in batches(4):
        for loss, optimizer in zip(by_hand.losses(batch), optimizers, strict=True):
            loss.backward()
            optimizer.step()
            by_hand.zero_grad()
    for got, wanted in zip(module.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    assert trainer.global_step == 8
    assert (
        module.hooks
        == ["before backward", "after backward", "SGD", "before backward", "after backward", "Adam"]
        * 4
    )
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_schedulers_in_manual_optimization():
    class Stepping(Configured):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.manual_backward(self.layer(batch).sum())
            self.optimizers().step()
            if batch_idx % 2:
                self.lr_schedulers().step()

    module = Stepping(in_dict)
    fit(module, max_epochs=1)  # a warning is an error
    assert module.rates == [1.0, 1.0, 0.5, 0.5]
