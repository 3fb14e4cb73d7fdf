"""Derivatives that a step takes beside its loss are those of one device, or refused by name."""

from functools import partial

import pytest
import torch
from language import ALONE, WIDTH, Block, Net, Step, train
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from core import ModuleError
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend
from core_testing.training import assert_equal_tensors


class _OfVectors(Net):
    """Without the part that takes words, which have no gradient."""

    def __init__(self):
        super().__init__()
        self.start = nn.Identity()

    def pipeline(self):
        return [*self.blocks, self.head]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Derives(Step):
    """A step that begins with the vectors of words."""

    def __init__(self):
        super().__init__(_OfVectors)
        self.register_buffer("vectors", torch.randn(11, WIDTH, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        # The fused kernels of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            return self.derived(self.vectors[batch[0][:, :8]])

    def loss(self, x):
        return (self.net(x) * self.scale).square().mean()


class Adversarial(_Derives):
    """Goodfellow et al., "Explaining and Harnessing Adversarial Examples", 2015."""

    def derived(self, x):
        (gradient,) = torch.autograd.grad(self.loss(x.requires_grad_()), x)
        return self.loss((x + 0.1 * gradient.sign()).detach())


class Penalized(_Derives):
    """Gulrajani et al., "Improved Training of Wasserstein GANs", 2017."""

    def derived(self, x):
        loss = self.loss(x.requires_grad_())
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 100 * gradient.square().sum()


class PenalizedWeight(_Derives):
    """A penalty of a weight's gradient."""

    def derived(self, x):
        loss = self.loss(x)
        (gradient,) = torch.autograd.grad(loss, self.net.blocks[0].up.weight, create_graph=True)
        return loss + gradient.square().sum()


class _Clamping(Block):
    """What goes back through it is clamped, by a hook, and by a Function behind that."""

    def forward(self, x):
        x = _Clamp.apply(super().forward(x))
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.clamp(-1e-4, 2e-4))
        return x


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-2e-4, 1e-4)


class Clamped(Step):
    """Gradients inside of the model, and beside it, that are not linear in those behind them."""

    def __init__(self):
        super().__init__()
        self.net.blocks = nn.ModuleList(_Clamping() for _ in range(2))
        self.double()

    def compute(self, words):
        logits = super().compute(words)
        logits.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return logits


class _ConditionedNet(Net):
    """A vector for each sample is added to all positions."""

    def forward(self, words, places, condition):
        x = self.start(words, places) + condition.unsqueeze(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Conditioned(Step):
    """The step computes what the model is given beside its sequence, and a penalty of its weights.

    Two backwards add up gradients for one step of the optimizer.
    """

    automatic_optimization = False

    def __init__(self):
        super().__init__(_ConditionedNet)
        self.condition = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        words, optimizer = batch[0][:, :8], self.optimizers()
        optimizer.zero_grad()
        for factor in (1, 2):
            given = words[:, :1] * (factor / 7) * self.condition
            places = torch.arange(8).expand_as(words)
            loss = (self.net(words, places, given) * self.scale).square().mean()
            loss = loss + given.square().mean()
            self.manual_backward(loss + 0.1 * sum(one.square().sum() for one in self.parameters()))
        optimizer.step()


class _Again(Block):
    """Is computed again in backward."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class ComputedAgain(Step):
    """A backward within the step computes blocks again."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net.blocks = nn.ModuleList(_Again() for _ in range(2))
        self.double()

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx)["loss"])
        optimizer.step()


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.number = x.size(0) * x.size(1)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (64.0 / ctx.number)


class Sized(Step):
    """A Function divides what goes back by the number of positions that it saw."""

    def __init__(self):
        super().__init__()
        own = self.net.blocks[0]
        own.forward = lambda x: type(own).forward(own, _Mean.apply(x))


class UsedTwice(Step):
    """A vector that blocks find in a list, and the loss too."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        kept = self.kept = []
        self.net.blocks[0].up.forward = lambda x: nn.Linear.forward(
            self.net.blocks[0].up, x * kept[-1]
        )

    def training_step(self, batch, batch_idx):
        self.kept.append(self.bias.tanh())
        found = super().training_step(batch, batch_idx)
        return found["loss"] + self.kept.pop().square().sum()


GATHER = {"context": 2, "context_attention": "gather"}
RIGHT = [
    *((Adversarial, mesh) for mesh in ({"tensor": 2}, {"context": 2}, GATHER, {"pipeline": 2})),
    *((Penalized, mesh) for mesh in ({"context": 2}, GATHER)),
    *((Clamped, mesh) for mesh in ({"context": 2}, GATHER, {"pipeline": 2})),
    *((ComputedAgain, mesh) for mesh in ({"tensor": 2}, {"context": 2})),
    *((Conditioned, mesh) for mesh in ({"context": 2}, GATHER)),
]
REFUSED = {
    (
        Penalized,
        "tensor",
    ): "exchanges of layers that are cut under tensor= have no second derivative",
    (Penalized, "pipeline"): "Over the ranks of a pipeline there is no graph of it",
    (Sized, "context"): "_Mean keeps in ctx.number a size of what it is given, of which each of 2",
    (UsedTwice, "context"): "What TanhBackward0 has computed is used within a call of the model",
    (Penalized, "shard"): "Parameters of a unit are released after its backward",
    (PenalizedWeight, "shard"): "asked for a gradient that isn't there",
    (
        PenalizedWeight,
        "context",
    ): "asked for the gradient of 'blocks.0.up.weight', of which each of 2",
}


@pytest.mark.slow
def test_derivatives_are_those_of_one_device_or_refused():
    def _trained(rank, make, **mesh):
        return train(rank, make, max_steps=3, strategy=MeshParallelStrategy(**mesh))[0]

    def _refusal(rank, make, **mesh):
        try:
            _trained(rank, make, **mesh)
        except ModuleError as error:
            return str(error)
        return "none"

    def _on_meshes(rank):
        return [_trained(rank, make, **mesh) for make, mesh in RIGHT], {
            case: _refusal(rank, case[0], **{case[1]: 2}) for case in REFUSED
        }

    on_two = Backend(MeshParallelStrategy, "cpu", 2, 1)
    found, refusals = on_two.run(_on_meshes)[0]
    expected = {
        make: ALONE.run(partial(train, make=make, max_steps=3))[0][0] for make in dict(RIGHT)
    }
    for (make, _), weights in zip(RIGHT, found, strict=True):
        assert_equal_tensors(weights, expected[make], 1e-12)
    for case, text in REFUSED.items():
        assert text in refusals[case]
