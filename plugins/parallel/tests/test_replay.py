"""A model's own forward runs as often as on one device, with all that it does between its parts."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from language import ALONE, on
from torch import nn

from core_parallel.stages import hollow
from core_parallel.stages.forms import TensorForm

_TWO = on(in_process=True, pipeline=2, microbatches=2)
_ONE = on(in_process=True, pipeline=2, microbatches=1)


class _Counted(nn.Linear):
    """A part that counts its calls."""

    num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return super().forward(x)


class _Found(nn.Module):
    """Nothing says its parts: its blocks are found."""

    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(_Counted(4, 4) for _ in range(4))
        self.num_calls = 0
        self.hooked = []
        for part in (self.start, self.blocks[0], self.blocks[3]):
            part.register_forward_hook(lambda part, *_: self.hooked.append(str(part)))

    def forward(self, x):
        self.num_calls += 1
        x = self.start(x).relu()
        for block in self.blocks:
            x = block(x) + x.shape[1]
        return x.tanh()


class _Planned(_Found):
    config = SimpleNamespace(base_model_pp_plan={"start": (), "blocks": ()})


class _Declared(_Found):
    def pipeline(self):
        return [self.start, *self.blocks]


class _Skipping(_Found):
    """Declares the middle of what it calls."""

    def pipeline(self):
        return [self.blocks[1], self.blocks[2]]


@pytest.mark.parametrize("make", [_Found, _Planned, _Declared, _Skipping])
def test_user_code_runs_as_often_as_on_one_device(make):
    def _counts(rank, make, given):
        """How often the model, its hooks and each of its parts were called in three steps and an
        evaluation; and the results.
        """
        fabric = rank.fabric(given)
        torch.manual_seed(0)
        net = make()
        model = fabric.setup(net)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        found = []
        for size in (4, 4, 6):
            loss = model(torch.ones(size, 4)).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        with torch.no_grad():
            found.append(model(torch.ones(3, 4)).sum().item())
        fabric.teardown()
        return net.num_calls, sorted(net.hooked), [one.num_calls for one in net.blocks], found

    ((calls, hooked, of_parts, expected),) = ALONE.run(_counts, make, None)
    runs = _ONE.run(_counts, make, None)
    assert [one for one, *_ in runs] == [calls] * 2
    for count, of_ranks in zip(of_parts, zip(*(one[2] for one in runs), strict=True), strict=True):
        assert {*of_ranks} <= {0, count}, "a part is on one rank, and what is no part on all"
        assert count in of_ranks
    assert set(hooked) == {one for run in runs for one in run[1]}
    for *_, found in runs:
        assert found == pytest.approx(expected, abs=1e-6)


def _of_batch(size, model):
    return model(torch.linspace(-1, 1, 4 * size, dtype=torch.float64).reshape(size, 4))


def _adversarial(model):
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x), x)
    return model((x + gradient.sign() / 10).detach())


_CALLS = [*(partial(_of_batch, size) for size in (4, 3, 6)), _adversarial]


@pytest.mark.parametrize("how", ["pipeline", "plan", "blocks"])
@pytest.mark.parametrize("backend", [_ONE, _TWO], ids=["at once", "in pieces"])
def test_what_forward_does_between_parts_has_the_gradients_of_one_device(how, backend):
    class _Net(nn.Module):
        """Its forward uses its second argument before, between and behind its parts."""

        def __init__(self, how="pipeline"):
            super().__init__()
            self.outside = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
            if how == "plan":
                self.config = SimpleNamespace(base_model_pp_plan={"blocks": ()})
            if how == "pipeline":
                self.pipeline = lambda: [*self.blocks]

        def forward(self, x, y):
            beside = self.outside(y).tanh()
            for index, block in enumerate(self.blocks):
                x = block(x * beside) + y * index
            return {"x": x * beside.exp(), "y": [y.cos() * x]}

    class _Step(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.net, self.shift = _Net(how), nn.Parameter(torch.linspace(0, 1, 4))
            self.double()

        def forward(self, x):
            found = self.net(x, x.cos() * self.shift)
            return found["x"].square().mean() + found["y"][0].sin().mean() + found["x"][0].sum()

    def _gradients(rank, how):
        """The loss of each call, and the gradients that this rank has of it."""
        found = []
        for call in _CALLS:
            fabric = rank.fabric()
            torch.manual_seed(0)
            module = _Step(how)
            loss = call(fabric.setup(module))
            fabric.backward(loss)
            own = {name: one for name, one in module.named_parameters() if not one.is_meta}
            found.append({"loss": loss.detach()} | {name: one.grad for name, one in own.items()})
            fabric.teardown()
        return found

    (expected,) = ALONE.run(_gradients, how)
    for found in backend.run(_gradients, how):
        for own, alone in zip(found, expected, strict=True):
            for name, one in own.items():
                torch.testing.assert_close(one, alone[name], rtol=0, atol=1e-12, msg=name)


class _Later(nn.Module):
    """From the second call on, its last part gets the first one's result too."""

    def __init__(self, where):
        super().__init__()
        self.first, self.middle, self.next, self.last = (nn.Linear(4, 4) for _ in range(4))
        self.where, self.is_late = where, False

    def pipeline(self):
        return [self.first, self.middle, self.next, self.last]

    def forward(self, x):
        first = self.first(x)
        x = self.next(self.middle(first))
        if self.is_late and self.where == "part":
            x = x + first
        x = self.last(x)
        if self.is_late and self.where == "number":
            return x * first.sum().item()
        return x + first if self.is_late and self.where == "result" else x


@pytest.mark.parametrize("backend", [_ONE, _TWO], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("part", "computes 'last' also from results of other parts than the one before"),
        ("result", "computes its result also from what other parts than the last return"),
        ("number", "item needs the numbers of what 'first' returns, or of what was made of it"),
    ],
)
def test_a_leak_is_refused_at_the_call_that_has_it(backend, where, expected):
    def _twice(model, net):
        model(torch.ones(4, 4))
        net.is_late = True
        model(torch.ones(4, 4))

    def _run_twice(rank, where):
        fabric = rank.fabric()
        net = _Later(where)
        try:
            _twice(fabric.setup(net), net)
        finally:
            fabric.teardown()

    with pytest.raises(Exception, match=expected):
        backend.run(_run_twice, where)


_KEPT = []
_TABLES = {}


def _keep(part, given, result):
    _KEPT.append(result * 2)


@pytest.mark.parametrize("backend", [_ONE, _TWO], ids=["at once", "in pieces"])
def test_a_table_that_a_hook_keeps_is_none_of_the_calls(backend):
    def _add_places(part, given, result):
        places = _TABLES.setdefault(result.shape[1], torch.arange(result.shape[1]).sin())
        return result + places.to(result)

    backend.run(_run_keeping, 3, True, _add_places)


@pytest.mark.parametrize("backend", [_ONE, _TWO], ids=["at once", "in pieces"])
@pytest.mark.parametrize("num_calls_before", [0, 3], ids=["first", "later"])
@pytest.mark.parametrize("learns", [True, False], ids=["training", "evaluation"])
def test_a_tensor_that_a_hook_keeps_is_refused(backend, num_calls_before, learns):
    """A call is looked at from time to time."""
    with pytest.raises(Exception, match=r"_Later keeps a tensor of shape \(\d, 4\) elsewhere than"):
        backend.run(_run_keeping, num_calls_before, learns)


def _run_keeping(rank, num_calls_before, learns, keep=_keep):
    fabric, net = rank.fabric(), _Later("nowhere")
    model = fabric.setup(net)
    try:
        with torch.set_grad_enabled(learns):
            for _ in range(num_calls_before):
                model(torch.ones(4, 4))
            net.last.register_forward_hook(keep)
            model(torch.ones(4, 4))
    finally:
        fabric.teardown()


# hollow tensors -----------------------------------------------------------------------------------


def _hollow(*shape):
    return hollow.make(
        TensorForm(shape, torch.float32), torch.device("cpu"), "what 'first' returns"
    )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.ones(2, 3) * x, (2, 3)),
        (lambda x: nn.Linear(3, 5)(x), (2, 5)),
        (lambda x: torch.cat([x, torch.ones(4, 3)]), (6, 3)),
        (lambda x: x.max(1).values, (2,)),
        (lambda x: x.unsqueeze_(0).to("cpu").float(), (1, 2, 3)),
        (lambda x: [*x][1], (3,)),
        (lambda x: nn.LSTM(3, 4)(x)[1][0], (1, 4)),
    ],
)
def test_what_is_computed_with_a_hollow_tensor_is_hollow(function, shape):
    found = function(_hollow(2, 3))
    assert hollow.is_in([found])
    assert (tuple(found.shape), found.device.type, found.is_meta) == (shape, "cpu", False)


@pytest.mark.parametrize(
    "function",
    [
        torch.ones_like,
        lambda x: x.new_zeros(2, 3),
        lambda x: torch.ones(3).expand_as(x),
        lambda x: torch.arange(x.shape[1], device=x.device) > 0,
        lambda x: torch.ones(2).to(x),
    ],
)
def test_what_needs_its_form_alone_is_here(function):
    found = function(_hollow(2, 3))
    assert not hollow.is_in([found])
    assert found.sum() >= 0


@pytest.mark.parametrize(
    "function",
    [
        bool,
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: torch.zeros(2, 3).add_(x),
        lambda x: torch.zeros(4, 3).__setitem__(slice(2), x),
        lambda x: torch.add(x, 1, out=torch.zeros(2, 3)),
        lambda x: x.sum().backward(),
    ],
)
def test_numbers_of_a_hollow_tensor_are_refused(function):
    with pytest.raises(Exception, match="needs the numbers of what 'first' returns"):
        function(_hollow(2, 3))


# schedules ----------------------------------------------------------------------------------------


def test_a_schedule_goes_back_to_earlier_lengths():
    class _Lengths(nn.Module):
        """Between its parts it adds places, as many as there are."""

        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
            self.places = nn.Embedding(9, 4)

        def pipeline(self):
            return [*self.blocks]

        def forward(self, x):
            for block in self.blocks:
                x = block(x) + self.places(torch.arange(x.shape[1]))
            return x

    def _step_by_lengths(rank):
        """The losses of batches of two lengths in turn, by a schedule."""
        fabric, net = rank.fabric(), _Lengths().double()
        nn.init.constant_(net.places.weight, 0.5)
        for block in net.blocks:
            nn.init.eye_(block.weight)
        model = fabric.setup(net)
        batches = [torch.ones(4, length, 4, dtype=torch.float64) for length in (5, 7, 5, 7)]
        losses = [
            float(fabric.step(model, one, lambda module, batch: module(batch).square().mean()))
            for one in batches
        ]
        fabric.teardown()
        return losses

    torch.manual_seed(0)
    backend = on(in_process=True, pipeline=2, schedule="1F1B")
    runs = backend.run(_step_by_lengths)
    assert runs[0] == pytest.approx(runs[1])
    assert runs[0][0] == pytest.approx(runs[0][2])
    assert runs[0][1] == pytest.approx(runs[0][3])
