"""What is said of a loss of microbatches is true of it: weighted, they make up that of their batch,
or are refused.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from core import ModuleError
from core_parallel.following.marks import MICROBATCH, PartAlong, mark_of
from core_parallel.following.microbatches import FollowedMicrobatch, is_mixed, refuse_other_losses

_SCALE = nn.Parameter(torch.tensor(0.3))
_CONVOLUTION = nn.Conv1d(1, 2, 2)
_CROSS_ENTROPY = functional.cross_entropy


def _picked(x, y):
    return -x.log_softmax(-1)[torch.arange(len(y)), y.clamp(min=0)].mean()


def _masked(x, y):
    mask = y >= 0
    return {"loss": x[mask].square().mean(), "weight": mask.sum()}


def _by_count(x, y):
    number = (y >= 0).sum().item()
    return {"loss": (x.sum(1) * (y >= 0)).sum() / number, "weight": number}


def _no_more_than_one(x, y):
    mask = y >= 0
    return {"loss": (x.sum(1) * mask).sum() / mask.sum().clamp(min=1), "weight": mask.sum()}


def _in_place(x, y):
    total = torch.zeros(())
    for column in x.unbind(1):
        total += column.square().mean()
    return total


_RIGHT = {
    "a mean": lambda x, y: functional.mse_loss(x, torch.zeros_like(x)),
    "of chances": lambda x, y: functional.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid()),
    "a sum by a size": lambda x, y: functional.huber_loss(x, x * 0, reduction="sum") / len(y),
    "of noise": lambda x, y: (x + 0 * torch.randn(x.shape)).square().mean(),
    "by the number of samples": lambda x, y: x.square().sum() / len(x),
    "by a size": lambda x, y: x.square().sum() / x.shape[0] / 3,
    "by a size as a number": lambda x, y: x.square().sum() / int(x.shape[0]),
    "by all sizes": lambda x, y: x.square().sum() / x.numel(),
    "labels": lambda x, y: _CROSS_ENTROPY(x, y.clamp(min=0), label_smoothing=0.1),
    "labels that are left out": lambda x, y: {
        "loss": _CROSS_ENTROPY(x, y),
        "weight": (y != -100).sum(),
    },
    "and smoothed": lambda x, y: {
        "loss": _CROSS_ENTROPY(x, y, label_smoothing=0.1),
        "weight": (y != -100).sum(),
    },
    "picked by hand": _picked,
    "of places that count": _masked,
    "by their number": _by_count,
    "by at least one": _no_more_than_one,
    "several": lambda x, y: 2 * x.mean() + functional.l1_loss(x, x * 0) - x.square().mean() / 4,
    "with a penalty": lambda x, y: x.mean() * _SCALE.exp() + _SCALE.square() + 1,
    "of a list": lambda x, y: sum([x.mean(), x.square().mean()]),
    "stacked": lambda x, y: torch.stack([x.mean(), x.square().mean()]).sum(),
    "by column, as many as samples": lambda x, y: (
        functional.pad(x, (0, 1)) * torch.arange(4)
    ).mean(),
    "by column": lambda x, y: (x.mean(0) * torch.arange(3.0)).sum(),
    "in place": _in_place,
    "of another module": lambda x, y: _CONVOLUTION(functional.pad(x, (0, 1))[:, None]).mean(),
    "with a usual factor": lambda x, y: x.mean() + (0.25 if len(x) else 1.0) * x.square().mean(),
    "with a square": lambda x, y: (x**2).mean() * (math.sqrt(x.shape[0]) > 0),
    "with a term that is left out": lambda x, y: x.mean() + 0.0 * (x @ x.T).logsumexp(1).mean(),
}
_REFUSED = {
    "a sum": (lambda x, y: x.square().sum(), "it is a sum"),
    "a sum by a number": (lambda x, y: x.square().sum() / 7.5, "it is a sum"),
    "a mean by the number of samples": (lambda x, y: x.mean() * len(x), "mul by the number"),
    "values by that number": (lambda x, y: (x * len(x)).mean(), "mul by the number"),
    "a mean by a count": (lambda x, y: x.mean() * (y >= 0).sum().item(), "mul by the number"),
    "by one over that number": (lambda x, y: x.mean() * (1.0 / len(x)), "mul by the number"),
    "values by one over it": (lambda x, y: (x * (1 / len(x))).mean(), "mul by the number"),
    "a mean divided by it": (lambda x, y: x.mean() / len(x), "div by the number"),
    "values divided by it": (lambda x, y: (x / len(x)).mean(), "div by the number"),
    "by one over a size": (lambda x, y: x.mean() * (1.0 / x.shape[0]), "mul by the number"),
    "by a fraction of a size": (lambda x, y: x.mean() * (1 / x.shape[0]), "with a size of its"),
    "by a root of a size": (lambda x, y: x.mean() * math.sqrt(x.shape[0]), "with a size of its"),
    "over a root of a size": (lambda x, y: x.sum() / math.sqrt(x.shape[0]), "with a size of its"),
    "over a power of a size": (lambda x, y: x.sum() / x.shape[0] ** 0.5, "with a size of its"),
    "by a size as a number": (lambda x, y: x.mean() * int(x.shape[0]), "with a size of its part"),
    "by their places": (lambda x, y: (x * torch.arange(len(x))[:, None]).mean(), "arange .*mixes"),
    "places as labels": (
        lambda x, y: _CROSS_ENTROPY(x, torch.arange(len(x)) % 3),
        "arange .*mixes",
    ),
    "a mean for each sample": (
        lambda x, y: x.mean().expand(len(x)).sum(),
        "expand by the number",
    ),
    "a loss of none in some": (
        lambda x, y: x.mean() if y[0] >= 0 else torch.zeros(()),
        "they are computed in several ways",
    ),
    "several terms in some": (
        lambda x, y: x.mean() + (x.mean() if y[0] >= 0 else 0),
        "they are computed in several ways",
    ),
    "a square root": (lambda x, y: x.square().mean().sqrt(), r"sqrt \(.*:\d+\) mixes"),
    "contrasts": (
        lambda x, y: _CROSS_ENTROPY(x @ x.T, torch.arange(len(x))),
        r"mm \(.*:\d+\) mixes",
    ),
    "the largest": (lambda x, y: x.max(), r"max \(.*:\d+\) mixes"),
    "a product of means": (lambda x, y: x.mean() * x.square().mean(), r"mul \(.*:\d+\) mixes"),
    "normed by the batch": (lambda x, y: ((x - x.mean(0)) ** 4).mean(), r"sub \(.*:\d+\) mixes"),
    "counts without a weight": (_CROSS_ENTROPY, r"means over 3, 2, 3 items, and .* are 1, 1, 1"),
    "another weight": (
        lambda x, y: {"loss": x.mean(), "weight": (y != -100).sum()},
        r"means over 12, 12, 12 items, and their weights are 3, 2, 3",
    ),
}
_NO_USUAL_NUMBERS = (
    "by one over that number",
    "values by one over it",
    "by one over a size",
    "by a root of a size",
    "over a root of a size",
)
"""Of 4 samples they are 0.25 and 2, which stand in programs for other reasons."""


def _losses_of(compute, size=4):
    """The losses of three microbatches, their weights, and the loss of the batch."""
    inputs = torch.randn(3 * size, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([-100, 1, 0, 2, -100, 1, -100, 2, 1, 2, -100, 0]).repeat(2)[: 3 * size]
    losses, weights = [], []
    for piece in zip(inputs.split(size), labels.split(size), strict=True):
        mode = FollowedMicrobatch(size)
        mode.begin(piece)
        with mode:
            found = compute(*piece)
        loss, weight = (found["loss"], found["weight"]) if type(found) is dict else (found, 1)
        losses.append(loss)
        weights.append(float(weight))
    whole = compute(inputs, labels)
    return losses, weights, whole["loss"] if type(whole) is dict else whole


@pytest.mark.parametrize("name", _RIGHT)
def test_losses_that_are_believed_make_up_that_of_the_batch(name):
    losses, weights, whole = _losses_of(_RIGHT[name])
    refuse_other_losses(losses, weights)
    assert mark_of(losses[0], MICROBATCH) is not None
    mean = sum(one * weight for one, weight in zip(losses, weights, strict=True)) / sum(weights)
    assert torch.allclose(mean, whole)


@pytest.mark.parametrize("name", _REFUSED)
def test_losses_that_do_not_are_refused_with_what_they_are(name):
    compute, expected = _REFUSED[name]
    losses, weights, _ = _losses_of(compute, size=6 if name in _NO_USUAL_NUMBERS else 4)
    with pytest.raises(ModuleError, match=f"for its 3 microbatches: .*{expected}"):
        refuse_other_losses(losses, weights)


def test_a_microbatch_without_weight_is_none():
    losses, _, _ = _losses_of(lambda x, y: x.sum())
    refuse_other_losses(losses, [0.0, 0.0, 0.0])


def test_what_follows_from_other_samples_is_known():
    mode = FollowedMicrobatch(4)
    inputs = torch.randn(4, 3)
    mode.begin([inputs])
    with mode:
        mixed = inputs * 0.9 + 0.1 * inputs[torch.randperm(4)]
        own = {"x": inputs.exp(), "scale": torch.ones(3)}
    assert is_mixed({"x": mixed})
    assert not is_mixed(own)
    assert mark_of(own["x"], MICROBATCH) == PartAlong(0)
