"""Each call is followed, whatever has decided that it computes otherwise than those before."""

import itertools
import re
import threading
from functools import partial

import pytest
import torch
from language import WIDTH, on
from torch import nn
from torch.nn import functional

from core import CoreError

LATE = 7
_globals = threading.local()  # of a rank


class _Otherwise(nn.Module):
    """Computes by position and by value, and something else from some call on."""

    def __init__(self, is_late, otherwise):
        super().__init__()
        self.is_late, self.otherwise = is_late, otherwise
        self.up, self.between, self.down = nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)
        self.calls, self.newest = 0, 0.0

    def forward(self, x):
        self.calls += 1
        hidden = self.between(self.up(x))
        if self.is_late(self):
            hidden = self.otherwise(hidden)
        return x + self.down(hidden)


def _by_a_count(module):
    return module.calls >= LATE


def _by_a_global(module):
    return _globals.calls >= LATE


def _by_the_newest_loss(module):
    return module.newest >= LATE


class _Around(nn.Module):
    tensor_parallel_plan = {"inner.up": "colwise", "inner.down": "rowwise"}

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def _hooked(otherwise):
    """A hook between the layers computes otherwise."""
    calls = itertools.count(1)

    def late(module, args, output):
        return otherwise(output) if next(calls) >= LATE else output

    inner = _Otherwise(lambda module: False, otherwise)
    inner.between.register_forward_hook(late)
    return _Around(inner)


def _over_positions(hidden):
    return hidden - hidden.mean(1, keepdim=True)


def _over_values(hidden):
    return functional.softmax(hidden, -1)


def _steps(rank, make):
    """The number of steps before the one that fails, and its error."""
    torch.manual_seed(0)
    _globals.calls = 0
    fabric = rank.fabric()
    user = make()
    model = fabric.setup(user)
    try:
        for number in range(LATE + 2):
            _globals.calls += 1
            user.inner.newest = float(number + 1)
            try:
                fabric.backward(model(torch.randn(2, 4, WIDTH)).square().mean())
            except CoreError as error:
                return number, str(error)
    finally:
        fabric.teardown()
    return LATE + 2, ""


_AXES = {
    "context": (_over_positions, "computes other values where each of 2 ranks has a part"),
    "tensor": (_over_values, "computes other values with the layers that the tensor plan cuts"),
}


@pytest.mark.parametrize("is_late", [_by_a_count, _by_a_global, _by_the_newest_loss])
@pytest.mark.parametrize("axis", _AXES)
def test_a_call_that_computes_otherwise_is_refused(axis, is_late):
    otherwise, expected = _AXES[axis]
    make = partial(_around, is_late, otherwise)
    for number, said in on(in_process=True, **{axis: 2}).run(_steps, make):
        assert number == LATE - 1
        assert re.search(expected, said), said


def _around(is_late, otherwise):
    return _Around(_Otherwise(is_late, otherwise))


@pytest.mark.parametrize("axis", _AXES)
def test_a_hook_that_computes_otherwise_is_refused(axis):
    otherwise, expected = _AXES[axis]
    for number, said in on(in_process=True, **{axis: 2}).run(_steps, partial(_hooked, otherwise)):
        assert number == LATE - 1
        assert re.search(expected, said), said


def _by_schedule(rank, late):
    """The number of steps before the one that fails, and its error."""
    torch.manual_seed(0)
    fabric = rank.fabric()
    model = fabric.setup(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    for number in range(LATE + 2):

        def loss_of(model, batch, number=number):
            found = model(batch).square()
            return late(found) if number == LATE else found.mean()

        try:
            fabric.step(model, torch.randn(8, WIDTH), loss_of)
        except CoreError as error:
            fabric.teardown()
            return number, str(error)
    fabric.teardown()
    return LATE + 2, ""


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (lambda found: found.sum(), "it is a sum"),
        (lambda found: found.mean().sqrt(), "sqrt .*mixes its samples"),
    ],
)
def test_a_late_loss_that_is_no_mean_is_refused_on_all_ranks(late, expected):
    ranks = on(in_process=True, pipeline=2, schedule="1F1B", microbatches=4)
    for number, said in ranks.run(_by_schedule, late):
        assert number == LATE
        assert re.search(expected, said), said
