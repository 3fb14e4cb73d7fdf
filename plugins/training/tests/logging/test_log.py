"""The values that `self.log` takes, the places where it is called, and the metrics that come of
it.
"""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import ModuleError
from core_testing import in_one_process
from core_training.logging.scalar_widths import widest_float
from support import late_torchmetrics as torchmetrics
from support.small_nets import Net, Recorder, batches, quiet_trainer


class Logging(Net):
    """Calls `act(self, ...)` in every hook that is named."""

    def __init__(self, act, *hooks):
        super().__init__()
        for hook in hooks:
            setattr(self, hook, lambda *args: act(self, *args))


class Validating(Logging):
    def validation_step(self, batch):
        pass


def in_training(act):
    """A module whose training steps begin with `act(module, batch, batch_idx)`."""

    class InTraining(Net):
        def training_step(self, batch, batch_idx):
            act(self, batch, batch_idx)
            return super().training_step(batch, batch_idx)

    return InTraining()


def in_validation(act):
    class InValidation(Net):
        def validation_step(self, batch, batch_idx):
            act(self, batch, batch_idx)

    return InValidation()


def log_in_step(**options):
    return in_training(
        lambda module, batch, batch_idx: module.log("value", float(batch_idx), **options)
    )


def log_in_validation(**options):
    return in_validation(
        lambda module, batch, batch_idx: module.log("value", float(batch_idx), **options)
    )


def fit(module, *, num_batches=3, validation=None, **options):
    trainer = quiet_trainer(**{"max_epochs": 1, "log_every_n_steps": 1, **options})
    trainer.fit(module, batches(num_batches), validation)
    return trainer


def values_of(trainer):
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


# defaults -----------------------------------------------------------------------------------------

IN_VALIDATION = [
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
]


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_batch_start",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_before_zero_grad",
        "on_train_batch_end",
    ],
)
def test_a_hook_of_a_step_logs_steps(hook):
    calls = []

    def act(module, *_):
        calls.append(None)
        module.log("value", float(len(calls)))

    recorder = Recorder()
    fit(Logging(act, hook), logger=recorder)
    assert [values["value"] for _, values in recorder.rows] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "hook", ["on_train_start", "on_train_epoch_start", "on_train_epoch_end", *IN_VALIDATION]
)
def test_a_hook_of_an_epoch_or_of_validation_logs_once(hook):
    recorder = Recorder()
    module = Validating(lambda module, *_: module.log("value", 2.0), hook)
    trainer = fit(module, validation=batches(2), logger=recorder)
    assert [values for _, values in recorder.rows] == [{"epoch": 0.0, "value": 2.0}]
    if hook in IN_VALIDATION:
        assert trainer.validate(module, batches(2)) == [{"value": 2.0}]


@pytest.mark.parametrize(
    "hook",
    [
        "setup",
        "on_fit_start",
        "on_train_end",
        "on_fit_end",
        "teardown",
        "on_validation_end",
        "on_sanity_check_start",
    ],
)
def test_a_hook_in_which_nothing_is_collected(hook):
    module = Validating(lambda module, *_: module.log("value", 2.0), hook)
    message = (
        r"self.log\('value'\) was called outside of the training, validation or test that a "
        r"Trainer runs, where noth"
        r".* Log in a training, validation or test step, or in a hook betw"
    )
    with pytest.raises(ModuleError, match=message):
        fit(module, validation=batches(1), num_sanity_val_steps=1)


def test_outside_of_a_run():
    """A word, once, before a run and after it: a step that is called by hand goes on."""
    module, other = log_in_step(), log_in_step()
    with pytest.warns(
        UserWarning, match=r"self.log\('value'\) records nothing, since no Trainer runs the module"
    ):
        module.log("value", 1.0)
    module.log("value", 1.0)
    trainer = fit(other)
    with pytest.warns(UserWarning, match=r"self.log\('late'\) records nothing"):
        other.log("late", 1.0)
    assert "late" not in trainer.callback_metrics


def test_during_prediction():
    class Predicting(Net):
        def predict_step(self, batch):
            self.log("value", 1.0)

    with pytest.raises(
        ModuleError, match=r"self.log\('value'\) was called while predicting, which has no metrics"
    ):
        quiet_trainer().predict(Predicting(), batches())


# options ------------------------------------------------------------------------------------------


def test_step_and_epoch():
    recorder = Recorder()
    trainer = fit(log_in_step(on_step=True, on_epoch=True), logger=recorder)
    assert [values.get("value_step", values.get("value_epoch")) for _, values in recorder.rows] == [
        0.0,
        1.0,
        2.0,
        1.0,
    ]
    assert values_of(trainer) == {"value_step": 2.0, "value_epoch": 1.0, "value": 1.0}


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", 1.0), ("min", 0.0), (torch.sum, 3.0), (torch.amax, 2.0), (max, 2.0)],
)
def test_reductions(reduction, expected):
    trainer = fit(log_in_step(on_step=False, on_epoch=True, reduce_fx=reduction))
    assert float(trainer.callback_metrics["value"]) == expected


def test_means_are_weighted_by_batch_size():
    def act(module, batch, batch_idx):
        module.log("inferred", float(batch_idx))
        module.log("given", float(batch_idx), batch_size=1 + 9 * batch_idx)

    results = quiet_trainer().validate(in_validation(act), [torch.ones(3, 4), torch.ones(1, 4)])
    assert results == [{"inferred": pytest.approx(1 / 4), "given": pytest.approx(10 / 11)}]


@pytest.mark.parametrize(
    ("make", "expected", "message"),
    [
        (
            lambda size: SimpleNamespace(x=torch.ones(size)),
            1 / 2,
            r"SimpleNamespace without .* counts as 1 in the epoch",
        ),
        (
            lambda size: [torch.ones(size), torch.ones(7)],
            1 / 4,
            r"list of tensors that differ .* the first tensor's, 3 h",
        ),
    ],
    ids=["unknown", "ambiguous"],
)
def test_a_size_that_cannot_be_told(make, expected, message):
    with pytest.warns(UserWarning, match=message) as warned:
        results = quiet_trainer().validate(log_in_validation(), [make(3), make(1)])
    assert results == [{"value": expected}]
    assert [str(each.message).count("batch_size=number of samples") for each in warned] == [1]
    # where no size is needed, nobody asks
    quiet_trainer().validate(log_in_validation(reduce_fx="sum"), [make(3)])
    quiet_trainer().validate(log_in_validation(batch_size=3), [make(3)])


def test_a_batch_of_no_samples_counts_for_nothing():
    module = in_validation(lambda module, batch, batch_idx: module.log("value", batch.mean()))
    assert quiet_trainer().validate(module, [torch.ones(2, 4), torch.ones(0, 4)]) == [
        {"value": 1.0}
    ]


# digits -------------------------------------------------------------------------------------------


def validated(values, **options):
    """The result of one value in each validation step."""
    module = in_validation(
        lambda module, batch, batch_idx: module.log("value", values[batch_idx], **options)
    )
    trainer = quiet_trainer()
    (result,) = trainer.validate(module, batches(len(values)))
    assert trainer.callback_metrics["value"].item() == pytest.approx(
        result["value"], rel=0, abs=0, nan_ok=True
    )
    return result["value"]


LARGE = 16_777_217  # what float32 can't hold
TENTHS = torch.tensor(0.1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([LARGE], LARGE),
        ([2**53, 1], 2**53 + 1),
        ([np.int64(2**53), np.int64(1)], 2**53 + 1),
        ([torch.tensor(2**53), 1], 2**53 + 1),
        ([torch.tensor(200, dtype=torch.uint8)] * 2, 400),
        ([torch.tensor(True)] * 3, 3),
        ([True] * 3, 3),
        ([0.1, 0.2], 0.1 + 0.2),
        ([TENTHS, TENTHS], 0.2),
        ([torch.tensor([[16_777_216.0]]), 1.0, torch.ones(1)], LARGE + 1),
        ([torch.ones((), dtype=torch.bfloat16)] * 300, 300),
        ([torch.tensor(1), 0.1], 1.1),
    ],
)
def test_sums_keep_their_digits(values, expected):
    assert validated(values, reduce_fx="sum") == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([torch.tensor(LARGE), LARGE], LARGE),
        ([TENTHS, TENTHS], 0.1),
        ([torch.full((), 1 + 2**-7, dtype=torch.bfloat16)] * 300, 1 + 2**-7),
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 3}])
def test_means_keep_their_digits(values, expected, options):
    assert validated(values, **options) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("reduction", "expected"), [("min", 0.1), ("max", LARGE)])
def test_extremes_keep_their_digits(reduction, expected):
    assert validated([torch.tensor(LARGE), 0.1, 1.0, TENTHS], reduce_fx=reduction) == expected


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", 6.0), ("min", 1.0), ("max", 3.0), ("mean", 2.0)]
)
def test_a_tensor_that_changes_after_it_was_logged(reduction, expected):
    count = torch.zeros((), dtype=torch.float64)
    module = in_validation(
        lambda module, *_: module.log("value", count.add_(1), reduce_fx=reduction)
    )
    assert quiet_trainer().validate(module, batches(3)) == [{"value": expected}]


@pytest.mark.parametrize(("options", "name"), [({}, "value"), ({"on_epoch": True}, "value_step")])
def test_a_loss_that_is_scaled_after_it_was_logged(options, name):
    class Scaling(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            loss = loss - loss.detach() + batch_idx + 1
            self.log("value", loss, prog_bar=True, **options)
            return loss.mul_(100)

    trainer = fit(Scaling(), logger=(recorder := Recorder()))
    assert [row[name] for _, row in recorder.rows if name in row] == [1.0, 2.0, 3.0]
    assert trainer.callback_metrics[name].item() == trainer.progress_bar_metrics[name] == 3.0
    assert not any(value.requires_grad for value in trainer.callback_metrics.values())


@pytest.mark.parametrize(
    "values", [[math.nan, 1.0], [1.0, math.nan], [1.0, torch.tensor(math.nan)]]
)
@pytest.mark.parametrize("reduction", ["min", "max", "mean"])
def test_an_epoch_with_nan_is_nan(reduction, values):
    assert math.isnan(validated(values, reduce_fx=reduction))


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        LARGE,
        True,
        np.float32(0.1),
        np.float64(0.1),
        *[
            TENTHS,
            torch.tensor(0.1),
            torch.tensor(0.1, dtype=torch.bfloat16),
            torch.tensor(True),
            torch.tensor(200, dtype=torch.uint8),
            torch.ones(1, 1),
        ],
    ],
)
def test_a_step_keeps_its_digits(value):
    module = in_training(lambda module, *_: module.log("value", value, prog_bar=True))
    trainer = fit(module, logger=(recorder := Recorder()))
    assert (
        trainer.callback_metrics["value"].item()
        == trainer.progress_bar_metrics["value"]
        == float(value)
    )
    assert recorder.rows[-1][1]["value"] == float(value)
    if isinstance(value, torch.Tensor):
        assert trainer.callback_metrics["value"].dtype is value.dtype


def test_a_device_without_float64():
    assert widest_float("cpu") is torch.float64
    assert widest_float("mps") is torch.float32  # there, and where there is none


# who sees it --------------------------------------------------------------------------------------


def test_the_bar_and_the_loggers_get_what_is_meant_for_them():
    def act(module, *_):
        module.log_dict({"shown": 1.0, "both": 2.0}, prog_bar=True, logger=False, on_epoch=False)
        module.log("logged", 3.0)

    recorder, module = Recorder(), in_training(act)
    module.validation_step = lambda batch: module.log("val", 4.0)
    trainer = fit(module, validation=batches(1), logger=recorder)
    assert trainer.progress_bar_metrics == {"shown": 1.0, "both": 2.0}
    assert recorder.rows[-2][1] == {"epoch": 0.0, "logged": 3.0}
    assert {name: value.item() for name, value in trainer.logged_metrics.items()} == {
        "logged": 3.0,
        "val": 4.0,
    }


def test_several_loaders():
    class Several(Net):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("own", float(dataloader_idx))
            self.log("all", float(dataloader_idx), add_dataloader_idx=False)

    results = quiet_trainer().validate(Several(), [DataLoader(TensorDataset(torch.ones(2, 4)))] * 2)
    assert results == [
        {"own/dataloader_idx_0": 0.0, "all": 0.5},
        {"own/dataloader_idx_1": 1.0, "all": 0.5},
    ]


# what is seen when --------------------------------------------------------------------------------


def test_a_value_is_seen_until_its_name_is_logged_again():
    class Seeing(Net):
        """Notes what callbacks see in some hooks."""

        def __init__(self):
            super().__init__()
            self.seen, self.num_steps, self.num_checks = [], 0, 0

        def note(self, hook):
            self.seen.append((hook, values_of(self.trainer)))

        def training_step(self, batch, batch_idx):
            self.num_steps += 1
            self.log("step", self.num_steps, prog_bar=True)
            self.log("shared", self.num_steps)
            self.log("mean", self.num_steps, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.num_checks += 1
            self.log("shared", -self.num_checks)
            self.log("check", self.num_checks, on_step=True, on_epoch=False)

        def on_validation_start(self):
            self.note("validation start")

        def on_validation_epoch_end(self):
            self.note("validation epoch end")
            self.log("late", float(self.num_checks))
            assert self.trainer.progress_bar_metrics == {"step": self.num_steps}

        def on_validation_end(self):
            self.note("validation end")

        def on_train_batch_start(self, batch, batch_idx):
            self.note("batch start")

        def on_train_epoch_end(self):
            self.note("train epoch end")

    module = Seeing()
    quiet_trainer(max_epochs=1, val_check_interval=1).fit(module, batches(2), batches(1))
    first = {"step": 1, "shared": -1.0, "check": 1}
    assert module.seen == [
        ("batch start", {}),
        ("validation start", {"step": 1, "shared": 1}),
        ("validation epoch end", first),
        ("validation end", {**first, "late": 1.0}),
        ("batch start", {**first, "late": 1.0}),
        ("validation start", {"step": 2, "shared": 2, "check": 1, "late": 1.0}),
        ("validation epoch end", {"step": 2, "shared": -2.0, "check": 2, "late": 1.0}),
        ("validation end", {"step": 2, "shared": -2.0, "check": 2, "late": 2.0}),
        ("train epoch end", {"step": 2, "shared": -2.0, "check": 2, "late": 2.0, "mean": 1.5}),
    ]


def test_nothing_of_the_sanity_check_is_seen():
    seen = []
    module = in_validation(lambda module, *_: module.log("check", 1.0, on_step=True, on_epoch=True))
    module.on_train_batch_start = lambda *_: seen.append(values_of(module.trainer))
    quiet_trainer(num_sanity_val_steps=1, max_epochs=1).fit(module, batches(1), batches(1))
    assert seen == [{}]


# mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            torch.ones(3),
            r"got a tensor of shape \(3,\); expected one number. Reduce it first, for example with "
            r".mean\(\)",
        ),
        (torch.ones(0), r"got a tensor of shape \(0,\); expected one number"),
        (
            "1.0",
            "got str; expected a number, a tensor with one element, or a torchmetrics Metric. For "
            "several",
        ),
        ({"a": 1.0}, "got dict; expected a number, .* For several values use self.log_dict"),
        (None, "got NoneType; expected a number"),
        (np.ones(2), "got ndarray; expected a number"),
    ],
)
def test_a_value_that_is_no_number(value, message):
    module = in_training(lambda module, *_: module.log("value", value))
    with pytest.raises(ModuleError, match=r"self.log\('value'\) " + message):
        fit(module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce_fx": "median"}, r"reduce_fx='median'\): expected one of mean, sum, min, max"),
        (
            {"on_step": False, "on_epoch": False},
            "on_step and on_epoch are both False. Expected at least one True",
        ),
    ],
)
def test_options_that_cannot_be_met(options, message):
    with pytest.raises(ModuleError, match=message):
        fit(log_in_step(**options))


def test_a_name_logged_in_two_ways():
    module = log_in_step()
    module.on_train_batch_start = lambda batch, batch_idx: module.log("value", 2.0, prog_bar=True)
    message = r"'value'\) was called with prog_bar=True and prog_bar=False in one stage. Log"
    with pytest.raises(ModuleError, match=message):
        fit(module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            "on_step=True and on_epoch=False in one hook, on_step=False and on_epoch=True in "
            "another in one stage",
        ),
        ({"on_step": True, "on_epoch": False}, "on_step=None and on_step=True"),
    ],
)
def test_a_name_logged_in_two_hooks(options, message):
    module = log_in_step()
    module.on_train_epoch_end = lambda: module.log("value", 2.0, **options)
    with pytest.raises(ModuleError, match=message):
        fit(module)


def test_another_module_may_log_in_another_way():
    trainer = fit(log_in_step(), max_epochs=1)
    with pytest.warns(UserWarning, match="fit trains nothing"):  # its epoch is over already
        trainer.fit(log_in_step(prog_bar=True, on_epoch=True), batches())
    trainer.progress.epoch = 0
    trainer.fit(log_in_step(prog_bar=True, on_epoch=True), batches())
    assert trainer.progress_bar_metrics == {"value_step": 2.0, "value_epoch": 1.0}


def test_a_run_after_an_error_with_several_loaders():
    class Failing(Net):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("loss", 1.0)
            if dataloader_idx == 1:
                raise RuntimeError("of one loader")

    module, trainer = Failing(), quiet_trainer()
    with pytest.raises(RuntimeError, match="of one loader"):
        trainer.validate(module, [DataLoader(torch.zeros(2, 4))] * 2)
    assert trainer.validate(module, batches(2)) == [{"loss": 1.0}]


# torchmetrics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_samples", [50, 8])
def test_metric_objects_on_two_ranks(num_samples):
    """With 8 samples in one batch, one of the ranks has nothing to measure."""

    class MeasuringLate(Net):
        """One rank goes on measuring when the epoch ends."""

        def __init__(self):
            super().__init__()
            self.mean, self.late, self.later = (torchmetrics.MeanMetric() for _ in range(3))
            self.several = torchmetrics.MetricCollection(
                {"least": torchmetrics.MinMetric()}, prefix="val_"
            )

        def validation_step(self, batch, batch_idx):
            self.mean(batch)
            self.several.update(batch)
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            self.log_dict(self.several)
            self.late.update(1.0, weight=0.0)
            self.log("late", self.late)

        def on_validation_epoch_end(self):
            seen = {name: self.trainer.callback_metrics[name].item() for name in expected}
            assert seen == pytest.approx(expected), f"seen on rank {self.global_rank}"
            self.later.update(float(self.global_rank * 4))
            self.log("later", self.later)
            if self.global_rank == 0:
                self.late.update(7.0)

    values = torch.rand(num_samples, generator=torch.Generator().manual_seed(3))
    expected = {"mean": values.mean().item(), "val_least": values.min().item()}

    def validate():
        return quiet_trainer(strategy="ddp", devices=2).validate(
            MeasuringLate(), DataLoader(values, 8)
        )

    assert (
        in_one_process(validate) == [[pytest.approx({**expected, "late": 7.0, "later": 2.0})]] * 2
    )


@pytest.mark.parametrize("is_logged_first", [True, False])
def test_the_newest_value_of_a_metric_object(is_logged_first):
    def act(module, batch, batch_idx):
        calls = [
            lambda: module.log("mean", module.mean, on_step=True, on_epoch=True),
            lambda: module.mean(float(batch_idx)),
        ]
        for call in calls if is_logged_first else calls[::-1]:
            call()

    module, recorder = in_training(act), Recorder()
    module.mean = torchmetrics.MeanMetric()
    trainer = fit(module, logger=recorder)
    assert [values.get("mean_step", values.get("mean_epoch")) for _, values in recorder.rows] == [
        0.0,
        1.0,
        2.0,
        1.0,
    ]
    assert values_of(trainer) == {"mean_step": 2.0, "mean_epoch": 1.0, "mean": 1.0}


class SharedMean(Net):
    """One object, logged in some stages under names of their own, and in evaluation for one loader
    or several.
    """

    def __init__(self, stages, **options):
        super().__init__()
        self.mean, self.stages, self.options = torchmetrics.MeanMetric(), stages, options

    def _log(self, stage, value, **options):
        if stage in self.stages:
            self.mean(value)
            self.log(stage, self.mean, **options)

    def training_step(self, batch, batch_idx):
        self._log("train", 1.0, **self.options)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self._log("val", 5.0 + dataloader_idx, **self.options)

    def test_step(self, batch, batch_idx):
        self._log("test", 9.0)


@pytest.mark.parametrize("sanity_steps", [0, 1])
def test_a_metric_object_of_two_stages_of_one_run(sanity_steps):
    trainer = quiet_trainer(num_sanity_val_steps=sanity_steps)
    with pytest.raises(
        ModuleError,
        match=r"MeanMetric that was logged as '.*' in another stage of this run: .* Make an",
    ):
        trainer.fit(SharedMean(["train", "val"]), batches(2), batches(2))


def test_a_metric_object_of_two_loaders():
    with pytest.raises(
        ModuleError,
        match=r"'val/dataloader_idx_1'.* as 'val/dataloader_idx_0' in another loader: .*",
    ):
        quiet_trainer().validate(
            SharedMean(["val"]), [DataLoader(torch.zeros(2, 4)), DataLoader(torch.zeros(2, 4))]
        )
    joined = SharedMean(["val"], add_dataloader_idx=False)
    loaders = [DataLoader(torch.zeros(1, 4)), DataLoader(torch.zeros(3, 4))]
    assert quiet_trainer().validate(joined, loaders) == [{"val": 5.75}, {"val": 5.75}]


@pytest.mark.parametrize(
    "options", [{"on_step": True, "on_epoch": False}, {"on_step": False, "on_epoch": True}]
)
@pytest.mark.parametrize("has_another_trainer", [False, True])
def test_a_metric_object_begins_anew_in_the_stage_after_an_unfinished_epoch(
    options, has_another_trainer
):
    module = SharedMean(["train", "test"], **options)
    trainer = quiet_trainer(max_steps=1, limit_val_batches=0)
    trainer.fit(module, batches(3))
    assert (quiet_trainer() if has_another_trainer else trainer).test(module, batches(2)) == [
        {"test": 9.0}
    ]


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_metric_objects_that_share_parts(late):
    class Composed(Net):
        def __init__(self):
            super().__init__()
            self.first, self.second = torchmetrics.SumMetric(), torchmetrics.SumMetric()
            self.both = self.first + self.second

        def validation_step(self, batch, batch_idx):
            self.first.update(1.0)
            self.second.update(float(batch_idx))
            self.log_dict({"both": self.both, "first": self.first, "second": self.second})

    module, trainer = Composed(), quiet_trainer()
    if late:
        module.on_validation_epoch_end = lambda: module.second.update(late)
    for _ in range(2):  # they are reset in between
        results = trainer.validate(module, batches(3))
        assert results == [{"both": 6.0 + late, "first": 3.0, "second": 3.0 + late}]


def test_a_metric_object_that_a_hook_resets():
    def log_mean(module, batch, batch_idx):
        module.mean.update(3.0)
        module.log("mean", module.mean)

    module = in_validation(log_mean)
    module.mean = torchmetrics.MeanMetric()
    module.on_validation_epoch_end = module.mean.reset
    assert quiet_trainer().validate(module, batches(2)) == [{"mean": 3.0}]


def test_a_metric_object_and_something_else():
    def log_both(module, batch, batch_idx):
        module.mean.update(1.0)
        module.log("mean", 1.0 if batch_idx else module.mean)

    def log_another(module, batch, batch_idx):
        other = torchmetrics.MeanMetric()
        other.update(1.0)
        module.log("mean", other)

    module = in_validation(log_both)
    module.mean = torchmetrics.MeanMetric()
    with pytest.raises(
        ModuleError, match=r"'mean'\) got MeanMetric before, and a number now. Log one kind"
    ):
        quiet_trainer().validate(module, batches(2))
    with pytest.raises(
        ModuleError, match=r"'mean'\) got MeanMetric before, and another MeanMetric now"
    ):
        quiet_trainer().validate(in_validation(log_another), batches(2))


def test_a_metric_object_that_computes_several_numbers():
    confusion = torchmetrics.ConfusionMatrix(task="binary")
    confusion.update(torch.ones(2), torch.ones(2))
    module = in_validation(lambda module, *_: module.log("confusion", confusion))
    message = r"'confusion'\) got computes a tensor of shape \(2, 2\); expected one number"
    with pytest.raises(ModuleError, match=message):
        quiet_trainer().validate(module, batches(1))


def test_a_metric_that_was_updated_only_has_no_value_of_a_step():
    metric = torchmetrics.MeanMetric()
    metric.update(1.0)
    module = in_training(lambda module, *_: module.log("a", metric))
    with pytest.raises(
        ModuleError,
        match=r"got a MeanMetric that was updated and not called, .* Call it, metric\(\.\.\.\)",
    ):
        fit(module)


# several ranks ------------------------------------------------------------------------------------


def test_values_of_two_ranks():
    class Ranked(Net):
        def training_step(self, batch, batch_idx):
            rank = float(self.global_rank)
            self.log("rank_step", rank)
            self.log("synced_step", rank, sync_dist=True)
            self.log("large_step", 16_777_217, sync_dist=True, reduce_fx="sum")
            self.log("large_epoch", 16_777_217, on_step=False, on_epoch=True, reduce_fx="sum")
            self.log("epoch", rank, on_step=False, on_epoch=True)
            self.log("own_epoch", rank, on_step=False, on_epoch=True, sync_dist=False)
            self.log("first", rank, on_step=False, on_epoch=True, rank_zero_only=True)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self):
            if self.global_rank == 0:
                self.log("only_zero", 7.0, rank_zero_only=True)

    def train():
        trainer = quiet_trainer(max_epochs=1, strategy="ddp", devices=2)
        trainer.fit(Ranked(), DataLoader(torch.ones(8, 4), batch_size=2))
        return values_of(trainer)

    assert in_one_process(train)[0] == {
        "rank_step": 0.0,
        "synced_step": 0.5,
        "large_step": 2 * 16_777_217,
        "large_epoch": 4 * 16_777_217,
        "epoch": 0.5,
        "own_epoch": 0.0,
        "first": 0.0,
        "only_zero": 7.0,
    }


def test_a_value_that_one_rank_logs_is_named_once():
    """Neither one that depends on the batch, nor one of a rank without a batch of its own."""

    class Alone(Net):
        def validation_step(self, batch, batch_idx):
            self.log("all", 1.0)
            if self.global_rank == 0:
                self.log("alone", 2.0)
                if batch_idx == 1:
                    self.log("seldom", 3.0)

        def on_validation_epoch_end(self):
            if self.global_rank == 1:
                self.log("at_the_end", 4.0)

    def train():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for num_samples in (8, 1):
                trainer = quiet_trainer(max_epochs=2, strategy="ddp", devices=2)
                validation = DataLoader(torch.ones(num_samples), batch_size=2)
                trainer.fit(Alone(), DataLoader(torch.ones(4, 4), batch_size=2), validation)
        return [str(warning.message).partition(":")[0] for warning in caught]

    first, second = in_one_process(train)
    assert sorted(first + second) == [
        "self.log('alone') is called on rank 0, and not on rank 1",
        "self.log('at_the_end') is called on rank 1, and not on rank 0",
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_batch_may_be_a_nested_tensor():
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    module = log_in_validation(reduce_fx="max")
    assert quiet_trainer().validate(module, [nested]) == [{"value": 0.0}]
