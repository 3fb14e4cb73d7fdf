"""A pipeline computes what one device does, whatever a step does around the call of the model; or
refuses it.
"""

import copy
import re

import pipelines
import pytest
import torch
from language import ALONE, on, refusal
from torch import nn

from core import ConfigurationError, CoreError
from core_parallel import MeshParallelStrategy
from core_parallel.pipeline.draws import Seeds
from core_testing.training import assert_equal_tensors

_TWO = on(in_process=True, pipeline=2, microbatches=2)


@pytest.mark.numbers
def test_all_stages_equal_one_device():
    def _run(rank):
        """All stages: weights, values of steps and epochs, and predictions in the order of the
        data.
        """
        seen, module = pipelines.Seen(), pipelines.Net(0.1)
        torch.manual_seed(5 + rank.number)  # ranks of a pipeline share the state of their first
        options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}
        trainer = rank.trainer(max_epochs=2, callbacks=seen, **options)
        batches = pipelines.loader(30, 8)  # the last batch has 6, which 4 microbatches don't divide
        trainer.fit(module, batches, batches)
        fitted = {name: float(value) for name, value in trainer.callback_metrics.items()}
        tested = trainer.test(module, batches)
        predicted = trainer.predict(module, batches)
        return seen.weights, seen.steps, fitted, tested, torch.cat(predicted)

    expected = ALONE.run(_run)[0]
    first, second = on(in_process=True, pipeline=2, microbatches=4).run(_run)
    assert_equal_tensors(first[0], expected[0], 1e-12)
    torch.testing.assert_close(first[4], expected[4], rtol=0, atol=1e-12)
    assert first[1] == pytest.approx(expected[1], abs=1e-12)
    assert first[2] == pytest.approx(expected[2], abs=1e-12)
    assert first[3][0] == pytest.approx(expected[3][0], abs=1e-12)
    assert second[2:4] == first[2:4], "callbacks of every rank see the same"


class _Model(nn.Module):
    def __init__(self, *others):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.others = nn.ModuleList(others)
        self.fades_in = 0.0

    def pipeline(self):
        return [self.first, self.last]

    def forward(self, x):
        x = self.first(x)
        if self.fades_in or (self.training and x.shape[0] > 8):
            x = x * 2
        return self.last(x)


class _NoParts(_Model):
    pipeline = None


class _Stranger(_Model):
    def pipeline(self):
        return [self.first, nn.Linear(4, 4)]


class _Listed(_Model):
    def pipeline(self):
        return [nn.ModuleList([self.first]), self.last]


class _Penalized(_Model):
    """A function is the last part."""

    def pipeline(self):
        return [self.first, self.last, self.end]

    def forward(self, x):
        return self.end(super().forward(x))

    def end(self, x):
        return nn.functional.linear(x, self.first.weight)


class _Applies(nn.Module):
    """A part that is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class _Begins(_Model):
    """A function is the first part."""

    def pipeline(self):
        return [self.begin, self.first, self.last]

    def forward(self, x):
        return super().forward(self.begin(x))


def _shrunk(x):
    return x[: 4 if float(x[0, 0]) else 2]


class _Keeps(_Begins):
    def begin(self, x):
        self.balance = (x @ self.first.weight).square().mean()
        return x


class _Collects(_Begins):
    """Adds a term to a list that isn't the module's."""

    def __init__(self):
        super().__init__()
        terms = []
        self.add = lambda x: terms.append(x.square().mean())

    def begin(self, x):
        self.add(x)
        return x


class _BySize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.number = x.shape[0]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.number


class _Divides(nn.Linear):
    def forward(self, x):
        return _BySize.apply(super().forward(x))


class _Logs(_Begins):
    def log(self, name, value):
        """As a module of the Trainer has it."""

    def begin(self, x):
        self.log("mean", x.mean())
        return x


class _Measures(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.num_calls, self.counts = 0, {"calls": 0}
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.num_calls += 1
        self.counts["calls"] += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x)


def _once(model, net, size=8):
    return model(torch.cat([torch.ones(size // 2, 4), torch.zeros(size - size // 2, 4)])).sum()


def _beside(model, net):
    _once(model, net) + model.first(torch.ones(8, 4)).sum() + model.last(torch.ones(8, 4)).sum()


def _penalized(model, net):
    _once(model, net) + sum(one.square().sum() for one in model.parameters())


def _decayed(model, net):
    _once(model, net) + sum(one.data.square().sum() for one in model.parameters())


def _tied(model, net):
    for part in (model.first, model.last):
        nn.functional.linear(torch.ones(8, 4), part.weight.T)


def _averaged(model, net):
    with torch.no_grad():
        torch.ones(4, 4).mul_(0.9).add_(model.first.weight.detach()).add_(
            model.last.weight.detach()
        )


def _copied(model, net):
    for part in copy.deepcopy([model.first, model.last]):
        part(torch.ones(8, 4))


def _twice(model, net):
    loss = _once(model, net)
    loss.backward(retain_graph=True)
    loss.backward()


_STRANGE = "was called with a parameter or buffer that another stage has"


@pytest.mark.parametrize(
    ("make", "call", "expected"),
    [
        (_NoParts, None, "doesn't say what its parts are. Add `def pipeline"),
        (
            lambda: _NoParts(_Model(), _Model()),
            None,
            "several modules that could be cut: 'others.0', 'others.1'",
        ),
        (
            _Listed,
            None,
            r"(?s)returned ModuleList.*; .* as in \[self.embed, \*self.blocks,",
        ),
        (_Stranger, None, r"returned Linear\(.*; expected modules that it has as attributes"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            _once,
            "BatchNorm1d '1' would take its statistics",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)),
            _once,
            "SyncBatchNorm '1' waits for all ranks",
        ),
        (_Model, _beside, "was called, and another rank of the pipeline has it"),
        (_Model, _copied, "Linear .* was called, and another rank of the pipeline has it"),
        (_Model, _penalized, f"square {_STRANGE}"),
        (_Model, _decayed, f"square {_STRANGE}"),
        (_Model, _tied, f"linear {_STRANGE}"),
        (_Model, _averaged, f"add_ {_STRANGE}"),
        (_Model, _twice, "backward was called twice on one result"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(make, call, expected):
    for error in _TWO.run(refusal, make, call):
        assert re.search(expected, error), error


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 4), _Applies(torch.mean)),
            r"a tensor of shape \(\) for a microbatch of 4 samples",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), _Applies(lambda x: (x, "text"))),
            "returned a str; expected tensors",
        ),
        (
            _Logs,
            r"self\.log\('mean'\) was called by a part of the model, of which this rank computes "
            r"its own alone",
        ),
        (
            lambda: nn.Sequential(
                nn.Identity(), _Applies(_shrunk), nn.Linear(4, 4), nn.Linear(4, 4)
            ),
            r"Stage 0 .* returned tensors of .*shape \(2, 4\).*, and before, .* of .*shape \(4, "
            r"4\)",
        ),
        (
            _Keeps,
            "_Keeps keeps a tensor with a graph in its attribute 'balance', such as a loss of a "
            "part's own",
        ),
        (_Penalized, f"linear {_STRANGE}"),
        (_Collects, r"_Collects keeps a tensor of shape \(\) elsewhere than in its result"),
        (
            lambda: nn.Sequential(_Divides(4, 4), nn.Linear(4, 4)),
            r"_BySize keeps in ctx\.number a size of what it is given, of which a microbatch has",
        ),
        (
            lambda: nn.Sequential(_Measures(), nn.Linear(4, 4)),
            r"Stage 0 .* changes '0\.counts', '0\.mean', '0\.num_calls' with each microbatch, .* Say "
            r"microbatches=1",
        ),
    ],
)
def test_results_of_a_stage_that_cannot_travel_are_refused(make, expected):
    def _call(rank, make):
        fabric = rank.fabric()
        try:
            _once(fabric.setup(make()), None)
        finally:
            fabric.teardown()

    with pytest.raises(CoreError, match=expected):
        _TWO.run(_call, make)


def test_dropout_draws_anew_in_each_call_and_again_from_a_seed():
    def _drawn(rank):
        fabric = rank.fabric()
        model = fabric.setup(
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Dropout())
        )
        outputs = []
        for seed in (3, None, 3):
            if seed is not None:
                fabric.seed_everything(seed)
            outputs.append(model(torch.ones(8, 4)).detach())
        fabric.teardown()
        return outputs

    (first, second, again), others = _TWO.run(_drawn)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:4], first[4:]), "two microbatches have one mask"
    assert torch.equal(first, again)
    assert all(map(torch.equal, (first, second, again), others))


def test_each_stage_and_microbatch_draws_its_own_numbers_on_a_cpu():
    drawn = set()
    for stream in range(3):
        seeds = Seeds(1 << 61, stream, torch.device("cpu"))
        for stage in range(3):
            for microbatch in range(3):
                seeds.begin(stage, microbatch)
                drawn.add(torch.rand(1, dtype=torch.float64).item())
    assert len(drawn) == 27


def test_compiling_with_a_split_backward_and_lbfgs_are_refused():
    def _refused(rank):
        fabrics = (
            rank.fabric(on(pipeline=2, schedule="ZBVZeroBubble").strategy(), compile=True),
            rank.fabric(),
        )
        split = r"compile=True with schedule='ZBVZeroBubble', which computes .* Use 'GPi"
        with pytest.raises(ConfigurationError, match=split):
            fabrics[0].setup(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))))
        model = fabrics[1].setup(_Model())
        with pytest.raises(ConfigurationError, match="LBFGS makes one vector of all parameters"):
            fabrics[1].setup_optimizers(torch.optim.LBFGS(model.parameters()))
        for fabric in fabrics:
            fabric.teardown()
        return "refused"

    assert _TWO.run(_refused) == ["refused"] * 2


def test_a_number_of_microbatches_is_positive():
    with pytest.raises(
        ConfigurationError, match="microbatches=0: expected a positive number, or 'auto'"
    ):
        MeshParallelStrategy(pipeline=2, microbatches=0)
