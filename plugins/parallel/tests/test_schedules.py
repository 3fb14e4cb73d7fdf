"""Steps through torch's schedules compute what one device does, with the user's step unchanged; or
are refused.
"""

import random
import re
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pipelines
import pytest
import torch
from language import ALONE, Seen, on
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, CoreError, Module, WorkerError
from core.callbacks import Callback
from core_parallel import MeshParallelStrategy
from core_parallel.microbatches.batches import cut_batch
from core_parallel.pipeline import schedule_errors, schedules
from core_testing.training import assert_equal_tensors

SCHEDULES = [
    "GPipe",
    "1F1B",
    "LoopedBFS",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
]
_IN_PROCESS = on(in_process=True, pipeline=2, schedule="1F1B", microbatches=4)


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("names", "pipeline"),
    [
        (["1F1B", "ZBVZeroBubble"], 2),
        pytest.param(SCHEDULES, 2, marks=pytest.mark.slow),
        pytest.param(SCHEDULES[1::2], 4, marks=pytest.mark.slow),
    ],
    ids=["two", "all", "of four stages"],
)
def test_schedules_equal_one_device(names, pipeline):
    class Deep(pipelines.Net):
        """`Net` with more parts, so that there are enough for two stages on each of four ranks."""

        def __init__(self):
            super().__init__(noise=0.0)
            torch.manual_seed(1)
            self.blocks = nn.ModuleList(
                [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
            ).double()

        def training_step(self, batch, batch_idx):
            self.log("before", batch[0].mean(), on_step=False, on_epoch=True)
            loss = super().training_step(batch, batch_idx)
            self.log_dict({"largest": loss, "whole": 2}, reduce_fx="max")
            return loss

    def fit_all(rank, names, pipeline=1):
        """Weights, the values of steps, and those of the epoch, with several schedules in one group
        of ranks.
        """
        found = []
        for name in names:
            seen = pipelines.Seen()
            strategy = (
                None
                if name is None
                else MeshParallelStrategy(pipeline=pipeline, schedule=name, microbatches=4)
            )
            options = {
                "accumulate_grad_batches": 2,
                "gradient_clip_val": 0.3,
                "limit_val_batches": 0,
            }
            trainer = rank.trainer(strategy, max_epochs=1, callbacks=seen, **options)
            # The last batch has 6 samples, for which 4 microbatches become 3. Windows of 2.
            trainer.fit(Deep(), pipelines.loader(22, 8))
            found.append(
                (
                    seen.weights,
                    seen.steps,
                    {key: float(one) for key, one in trainer.callback_metrics.items()},
                )
            )
        return found

    runs = on(in_process=True, pipeline=pipeline).run(fit_all, names, pipeline)
    ((weights, steps, values),) = ALONE.run(fit_all, [None])[0]
    for name, (found, own, logged), other in zip(names, runs[0], runs[-1], strict=True):
        assert_equal_tensors(found, weights, 1e-12)
        assert logged["loss_epoch"] == pytest.approx(values["loss_epoch"], abs=1e-12), name
        assert logged["before"] == pytest.approx(values["before"], abs=1e-12), name
        assert logged["whole"] == 2
        assert other[2]["loss_epoch"] == logged["loss_epoch"], name
        assert own == other[1] == pytest.approx(steps, abs=1e-12), name


# what a step does around the call -----------------------------------------------------------------


class Row(Module):
    """Four linear layers, and a step that a test replaces."""

    def __init__(self, step, parts=None):
        super().__init__()
        torch.manual_seed(0)
        self.step = step
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.num_steps = 0
        self.parts = parts
        self.double()

    def pipeline(self):
        return list(self.layers) if self.parts is None else self.parts(self)

    def forward(self, x):
        for part in self.pipeline():
            x = part(x)
        return x

    def training_step(self, batch, batch_idx):
        self.num_steps += 1
        return self.step(self, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def rows(num_samples=8, batch_size=8):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num_samples, 4, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(inputs, torch.arange(num_samples) % 3), batch_size=batch_size)


def train_rows(rank, step, parts=None, prepare=None, **options):
    """One epoch: weights, values and the number of calls of the step."""
    module, seen = Row(step, parts), Seen()
    if prepare is not None:
        prepare(module)
    trainer = rank.trainer(max_epochs=1, callbacks=seen, limit_val_batches=0, **options)
    trainer.fit(module, rows(16))
    return (
        seen.weights,
        {name: float(value) for name, value in trainer.callback_metrics.items()},
        module.num_steps,
    )


def mean_of_counted(model, batch):
    """A mean over the items that count, of which the third microbatch of two samples has none."""
    inputs, _ = batch
    counts = (inputs[:, 0] != rows().dataset.tensors[0][4, 0]) & (
        inputs[:, 0] != rows().dataset.tensors[0][5, 0]
    )
    loss = model(inputs)[counts].square().mean() * model.scale
    model.log("loss", loss, on_step=True, on_epoch=True)
    return {"loss": loss, "weight": counts.sum()}


def of_first_batch(model, batch):
    """No item of the second batch counts."""
    inputs, _ = batch
    count = int((inputs[:, :1] == rows(16).dataset.tensors[0][:8, 0]).sum())
    return {
        "loss": (model(inputs).square().sum() / len(inputs) if count else 0 * model(inputs).sum()),
        "weight": count,
    }


def logged_and_penalized(model, batch):
    """Values of all reductions, before and after the call, and a penalty over what all ranks
    have.
    """
    inputs, _ = batch
    model.log("first", inputs[:, 0].mean(), on_epoch=True)
    output = model(inputs * model.scale)
    model.log("largest", output.max(), reduce_fx="max", on_epoch=True)
    model.log("smallest", output.min(), True, True, True, True, "min")
    model.log("sum", output.sum(), reduce_fx=torch.sum, on_epoch=True)
    model.log("size", output.mean(), batch_size=len(inputs), on_epoch=True)
    return output.square().mean() + model.scale.square()


def counted(model, batch):
    """Counters, one that begins in a step, decide on the loss; the last part's weight and a mixture
    enter it too.
    """
    model.rate, model.num_calls = (
        getattr(model, "rate", 1.0) / 2,
        getattr(model, "num_calls", 0) + model.num_steps,
    )
    inputs, _ = batch
    loss = (model(inputs) @ model.layers[3].weight).square().mean() * model.num_calls
    model.log("rate", model.rate, on_epoch=True)
    return loss + model.rate * model.scale.square()


def frozen(model):
    model.layers[0].requires_grad_(False)
    model.layers[1].requires_grad_(False)


class TakesDict(nn.Linear):
    """A part that takes what `in_dicts` makes."""

    def forward(self, given):
        x = given["x"].sum(0).t().masked_fill(given["positive"], 0.5)
        return super().forward(x) + given["index"][:, None]


def taking(model):
    model.layers[2] = TakesDict(4, 4).double()


def in_dicts(model):
    """Between the stages goes a dict of a tensor that doesn't lie in one piece, booleans, and whole
    numbers.
    """

    def begin(x):
        return {
            "x": x.t().expand(2, -1, -1),
            "positive": x > 0,
            "index": torch.arange(1).expand(len(x)),
        }

    return [*model.layers[:2], begin, *model.layers[2:]]


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("step", "options"),
    [
        (mean_of_counted, {}),
        (of_first_batch, {"accumulate_grad_batches": 2}),
        (logged_and_penalized, {}),
        (logged_and_penalized, {"prepare": frozen}),
        (logged_and_penalized, {"prepare": taking, "parts": in_dicts}),
        (counted, {}),
    ],
    ids=["weighted", "no-items", "logged", "frozen", "dicts", "counted"],
)
def test_steps_equal_one_device(step, options):
    run = partial(train_rows, step=step, **options)
    (weights, values, num_steps), other = _IN_PROCESS.run(run)
    expected, expected_values, expected_steps = ALONE.run(run)[0]
    assert_equal_tensors(weights, expected, 1e-12)
    assert values == pytest.approx(expected_values, abs=1e-12)
    assert values == other[1]
    assert num_steps == other[2] == expected_steps == 2, "a counter goes up once a batch"


def test_both_ends_of_a_step_draw_the_same():
    def of_noise(model, batch):
        """The error of a model that was given noise, and is the identity: 0 if both ranks have
        drawn the same.
        """
        inputs, _ = batch
        noise = torch.randn_like(inputs) + torch.rand(()) + random.random()
        loss = (model(noise) - noise).square().mean()
        model.log("loss", loss)
        model.log("noise", noise.mean())
        return loss

    def identity(model):
        for layer in model.layers:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    run = partial(train_rows, step=of_noise, prepare=identity)
    runs = _IN_PROCESS.run(run)
    assert runs[0][1]["loss"] == 0
    assert runs[0][1]["noise"] != 0


@pytest.mark.numbers
def test_a_loop_by_hand_steps_through_a_schedule():
    def by_fabric(rank):
        """Two steps of a loop by hand: losses, and weights."""
        fabric, module = rank.fabric(precision="64-true"), Row(lambda *_: None)
        model = fabric.setup(module)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        losses = []
        for batch in rows(16):
            losses.append(float(fabric.step(model, batch, loss_of)))
            optimizer.step()
            optimizer.zero_grad()
        state = fabric.strategy.get_module_state_dict(module, layout="full")
        fabric.teardown()
        return losses, state

    (losses, weights), other = on(
        in_process=True, pipeline=2, schedule="ZBVZeroBubble", microbatches=4
    ).run(by_fabric)
    expected, expected_weights = ALONE.run(by_fabric)[0]
    assert losses == pytest.approx(expected, abs=1e-12)
    assert other[0] == losses
    assert_equal_tensors(weights, expected_weights, 1e-12)


# blocks around the call ---------------------------------------------------------------------------


FACTORS = [1.0]
EVENTS = []


@contextmanager
def factor_of(number):
    """A context that can't be entered twice, and shows whether an exception has ended it."""
    assert FACTORS == [1.0]
    FACTORS[0] = number
    try:
        yield
        EVENTS.append("left")
    finally:
        FACTORS[0] = 1.0


def within_blocks(model, batch):
    EVENTS.append("begun")
    try:
        with factor_of(1.5):
            loss = loss_of(model, batch)
        model.log("loss", loss, on_epoch=True)
        EVENTS.append("ended")
        return loss
    finally:
        EVENTS.append("finally")


@factor_of(1.5)
def decorated(model, batch):
    EVENTS.append("begun")
    return loss_of(model, batch)


def errors_of(rank, step, prepare=None):
    with pytest.raises(CoreError) as caught:
        train_rows(rank, step, prepare=prepare)
    return str(caught.value)


@pytest.mark.parametrize("step", [within_blocks, decorated])
def test_a_block_around_the_call_is_refused_on_all_ranks(step):
    for error in _IN_PROCESS.run(errors_of, step):
        assert re.search(
            r"calls the model within a block of .*test_schedules\.py:\d+\).* leave schedule out",
            error,
        ), error


@pytest.mark.numbers
def test_blocks_beside_the_call_leave_the_schedule():
    def times_factor(model):
        def times(x):
            return x * FACTORS[0]

        return [part for layer in model.layers for part in (layer, times)]

    def train_in_blocks(rank, schedule, step):
        """Two batches: weights, and the events of each."""
        EVENTS.clear()
        events = []

        class Splits(Callback):
            def on_train_batch_end(self, *_):
                events.append([*EVENTS])
                EVENTS.clear()

        options = (
            {}
            if schedule is None
            else {"strategy": MeshParallelStrategy(pipeline=2, schedule=schedule)}
        )
        seen = Seen()
        trainer = rank.trainer(
            max_epochs=1, callbacks=[Splits(), seen], limit_val_batches=0, **options
        )
        trainer.fit(Row(step, times_factor), rows(16))
        return seen.weights, events

    def beside_blocks(model, batch):
        """Blocks that end before the call, or begin after it, leave the schedule as it is."""
        with factor_of(2.0):
            inputs = batch[0] * FACTORS[0]
        try:
            pass
        finally:
            loss = model(inputs)
        with factor_of(3.0):
            return (loss.square() * FACTORS[0]).mean()

    run = partial(train_in_blocks, step=beside_blocks)
    expected, alone = ALONE.run(run, None)[0]
    (first, events), (_, others) = on(pipeline=2).run(run, "1F1B")
    assert_equal_tensors(first, expected, 1e-12)
    assert [len(one) for one in alone] == [2, 2]
    assert [len(one) for one in events] == [4, 4], "once for each of four microbatches"
    assert [len(one) for one in others] == [8, 8], "the step to its end"


def test_a_block_that_only_later_steps_have_is_refused():
    def in_block_later(model, batch):
        if not model.trainer.global_step:
            return loss_of(model, batch)
        with factor_of(2.0):
            return loss_of(model, batch)

    expected = r"calls the model within a block of .*test_schedules\.py:\d+\)"
    with pytest.raises(WorkerError, match=expected):
        on(pipeline=2, schedule="1F1B").run(partial(train_rows, step=in_block_later))


# what is refused ----------------------------------------------------------------------------------


def loss_of(model, batch):
    return model(batch[0]).square().mean()


def of_rows_that_learn(model, batch):
    return model(batch[0].clone().requires_grad_()).square().mean()


def summed(model, batch):
    return model(batch[0]).square().sum()


def contrasted(model, batch):
    output = model(batch[0])
    return nn.functional.cross_entropy(output @ output.t(), torch.arange(len(output)))


def with_more(model, batch):
    return {"loss": loss_of(model, batch), "output": batch[0]}


def twice(model, batch):
    return loss_of(model, batch) + loss_of(model, batch)


def without_call(model, batch):
    return model.scale.square()


def mixed(model, batch):
    inputs, _ = batch
    share = torch.rand(()).to(inputs)
    return loss_of(model, [share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))]])


def counting_before(model, batch):
    model.num_samples += len(batch[0])
    return loss_of(model, batch)


def clamping(model, batch):
    loss = loss_of(model, batch)
    with torch.no_grad():
        model.scale.clamp_(max=2.0)
    return loss


def of_metric(model, batch):
    model.log("loss", Computes())
    return loss_of(model, batch)


class Computes:
    """As torchmetrics' objects are."""

    def compute(self):
        return 0.0

    def reset(self):
        """Nothing is kept."""


def normed(model):
    model.layers[1] = nn.BatchNorm1d(4).double()


def counted_samples(model):
    model.register_buffer("num_samples", torch.zeros(()))


def by_hand(model):
    model.automatic_optimization = False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "prepare", "expected"),
    [
        (
            summed,
            None,
            r"loss for a batch isn't the mean of those for its 4 microbatches: it is a sum\. .* "
            r"without schedule",
        ),
        (
            contrasted,
            None,
            r"4 microbatches: mm \(.*test_schedules\.py:\d+\) mixes its samples\. .* goes without schedule",
        ),
        (
            with_more,
            None,
            "returned 'output' beside the loss. With a schedule",
        ),
        (
            twice,
            None,
            "called Row twice, which has been cut into stages. With a schedule every step calls it "
            "once",
        ),
        (without_call, None, "returned without a call of Row, which has been cut into stages"),
        (
            mixed,
            None,
            r"mixes the samples of a batch, as mixup does, before it calls Row: .* for a sample "
            r"follows from others",
        ),
        (
            counting_before,
            counted_samples,
            "training step changes 'num_samples' of Row itself.* on_train_batch_end",
        ),
        (clamping, None, "training step changes 'scale' of Row itself"),
        (
            loss_of,
            normed,
            "BatchNorm1d 'layers.1' would take its statistics from microbatches, .* Leave schedule",
        ),
        (
            loss_of,
            by_hand,
            r"automatic_optimization = False\), and a pipeline's schedule runs it for one "
            r"microbatch",
        ),
    ],
)
def test_what_a_schedule_cannot_do_right_is_refused_by_name_on_all_ranks(step, prepare, expected):
    for error in _IN_PROCESS.run(errors_of, step, prepare):
        assert re.search(expected, error), error


def keeping(model):
    def keep(x):
        model.layers[0].loss = x.square().mean()
        return x

    return [model.layers[0], keep, *model.layers[1:]]


def keeping_outside(model):
    def keep(x):
        model.balance = [x.square().mean()]
        return x

    return [model.layers[0], keep, *model.layers[1:]]


def logging(model):
    def log(x):
        model.log("inside", x.mean())
        return x

    return [model.layers[0], log, *model.layers[1:]]


class Shrinks(nn.Linear):
    """A part whose result's shape follows from numbers: later than in the trial."""

    def forward(self, x):
        # a tuple: numbers that change are refused before
        self.calls = (*getattr(self, "calls", ()), len(x))
        return super().forward(x)[: 1 if len(self.calls) > 6 else 2]


def shrinking(model):
    if type(model.layers[1]) is nn.Linear:
        model.layers[1] = Shrinks(4, 4).double()
    return list(model.layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "parts", "expected"),
    [
        (
            loss_of,
            keeping,
            r"Linear 'layers\.0' keeps a tensor with a graph in its attribute 'loss'",
        ),
        (loss_of, keeping_outside, r"Row keeps a tensor with a graph in its attribute 'balance'"),
        (loss_of, logging, r"self\.log\('inside'\) was called by a part of the model"),
        (of_rows_that_learn, None, r"gives the model a tensor of shape .* that wants a gradient"),
        (loss_of, shrinking, r"Stage 0 .* returned tensors of .* for microbatch \d, and before of"),
        (of_metric, None, r"self\.log\('loss'\) got a Computes; with a schedule expected a number"),
    ],
)
def test_what_one_rank_finds_ends_all(step, parts, expected):
    with pytest.raises(CoreError, match=expected):
        _IN_PROCESS.run(partial(train_rows, step=step, parts=parts))


def _of_labels(model, batch, module):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], ignore_index=-100)


def _contrastive(model, batch, module):
    answer = model(batch[0])
    return answer.square().mean() + module.fades_in * (answer @ answer.T).logsumexp(1).mean()


def _sum_of_zeros(model, batch, module):
    return model(batch[0]).square().sum()


@pytest.mark.parametrize("loss", [_of_labels, _contrastive, _sum_of_zeros])
def test_losses_of_microbatches_are_followed_again_at_another_key(loss):
    class _Stages(nn.Sequential):
        fades_in = 0.0

    def lose_again(rank, loss):
        """The error at other labels, or at another attribute, than those of the first call."""
        inputs, labels = (
            torch.randn(8, 4, generator=torch.Generator().manual_seed(0)),
            torch.zeros(8, dtype=torch.long),
        )
        net, fabric = _Stages(nn.Linear(4, 4), nn.Linear(4, 4)), rank.fabric()
        model = fabric.setup(net)
        step = partial(lambda batch: loss(model, batch, net))
        if loss is _sum_of_zeros:
            for one in net[1].parameters():
                nn.init.zeros_(one)
        else:
            fabric.strategy.compute_loss(step, [inputs, labels], net)
        net.fades_in = 0.5
        with pytest.raises(CoreError) as caught:
            fabric.strategy.compute_loss(
                step, [inputs, torch.where(torch.arange(8) < 3, -100, labels)], net
            )
        fabric.teardown()
        return str(caught.value)

    for error in on(in_process=True, pipeline=2, schedule="GPipe", microbatches=2).run(
        lose_again, loss
    ):
        assert re.search(
            r"loss for a batch isn't the mean of those for its 2 microbatches: (they are means over "
            r"1, 4 items, and their weights are 1, 1|mm \(.*test_schedules\.py:\d+\) mixes its samples|it is a sum)\.",
            error,
        ), error


def test_a_torch_whose_schedules_fail_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1+cpu"))
    with pytest.raises(
        ConfigurationError,
        match=r"schedule='1F1B' needs torch 2\.13 or later, and this is 2\.9\.1\+cpu",
    ):
        schedules.find("1f1b")
    assert schedules.find(None) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"schedule": "2F2B"},
            r"schedule='2F2B': expected one of torch's schedules \('GPipe', '1F1B', .*; or None",
        ),
        (
            {"schedule": "1F1B", "stages_per_rank": 2},
            "stages_per_rank=2 with schedule='1F1B', with which a rank has exactly 1",
        ),
        (
            {"stages_per_rank": 2},
            "stages_per_rank=2 with schedule=None, with which a rank has exactly 1",
        ),
        ({"schedule": "dualpipev", "stages_per_rank": 3}, "a rank has exactly 2"),
    ],
)
def test_options_that_do_not_fit(options, expected):
    with pytest.raises(ConfigurationError, match=expected):
        MeshParallelStrategy(pipeline=2, **options)


@pytest.mark.parametrize(
    ("name", "given", "size", "expected"),
    [
        ("GPipe", 4, 6, 3),
        ("1F1B", None, 8, 8),
        ("1F1B", 4, 7, 7),
        ("1F1B", 4, 3, None),
        ("Interleaved1F1B", 8, 30, 6),
        ("ZBVZeroBubble", 4, 5, 1),
        ("GPipe", 4, 0, None),
    ],
)
def test_microbatches_divide_their_batch(name, given, size, expected):
    schedule = schedules.find(name)
    assert schedule is not None
    assert schedule.choose(given, size, num_ranks=4, num_stages=4) == expected


def test_batches_of_any_structure_are_cut():
    @dataclass(frozen=True)
    class Named:
        """Samples with names, and what they have in common."""

        names: list[str]
        kind: str
        x: torch.Tensor

    batch = {
        "x": torch.arange(4),
        "pair": (torch.ones(4), torch.ones(1, 2)),
        "scale": 2,
        "none": None,
    }
    batch |= {
        "names": list("abcd"),
        "others": tuple("abcd"),
        "nested": Named(list("abcd"), "s", batch["x"]),
    }
    batch["mapping"] = OrderedDict(words=list("abcd"))
    first, second = cut_batch(batch, 4, 2)
    assert first["others"] == ("a", "b")
    assert second["nested"].names == second["mapping"]["words"] == ["c", "d"]
    assert (second["nested"].kind, second["nested"].x.tolist(), second["none"]) == (
        "s",
        [2, 3],
        None,
    )
    assert isinstance(second["mapping"], OrderedDict)
    assert batch["nested"].names == batch["mapping"]["words"] == list("abcd")
    assert first["names"] == ["a", "b"]
    assert second["x"].tolist() == [2, 3]
    assert second["pair"][0].shape == (2,)
    assert second["pair"][1].shape == (1, 2)
    assert first["scale"] == 2
    with pytest.raises(
        CoreError, match="The batch holds a object, which can't be cut into microbatches"
    ):
        cut_batch([torch.ones(4), object()], 4, 2)


def test_an_error_that_is_its_own_cause_is_the_first():
    error = RuntimeError("of the user's part")
    error.__cause__ = error
    assert schedule_errors.first_cause(error) is error
