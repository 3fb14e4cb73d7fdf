"""Models of features: layers one after the other, and a recommender."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.learner import Learner
from models.losses import click, label, same_again
from models.parts import Chain, TwoLayers
from models.samples import clicks, features


class MLP(Chain):
    """Layers in pairs."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
    }


def mlp() -> Learner:
    """A multilayer perceptron."""
    net = MLP([nn.Linear(512, 768)], [TwoLayers(768, 1536) for _ in range(3)], [nn.Linear(768, 10)])
    return Learner(net, label, features(512), 512, plan=MLP.tensor_parallel_plan)


class Normed(nn.Module):
    """A layer and a batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.layer(x)))


def batchnorm() -> Learner:
    """A multilayer perceptron with a batch norm after each layer."""
    net = Chain([nn.Linear(512, 1024)], [Normed(1024) for _ in range(6)], [nn.Linear(1024, 10)])
    return Learner(net, label, features(512), 512, momentum=0.9)


class Layer(nn.Module):
    """A layer and what follows it."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.layer(x))


def autoencoder() -> Learner:
    """An autoencoder of flat images."""
    widths = (3072, 1024, 256, 1024)
    blocks: list[nn.Module] = [Layer(a, b) for a, b in pairwise(widths)]
    net = Chain([], blocks, [nn.Linear(1024, 3072)])
    return Learner(net, same_again, features(3072), 512, momentum=0.9)


class Recommender(nn.Module):
    """Tables of embeddings, whose products go with dense features into layers: Naumov et al.,
    "DLRM", 2019.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(8192, width) for _ in range(8))
        self.bottom = nn.ModuleDict({"in": nn.Linear(16, 256), "out": nn.Linear(256, width)})
        self.top = nn.ModuleDict({"in": nn.Linear(width + 36, 512), "out": nn.Linear(512, 1)})

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom["out"](functional.relu(self.bottom["in"](dense)))
        found = torch.stack([x, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        upper = torch.triu_indices(9, 9, 1, device=x.device)
        products = torch.bmm(found, found.transpose(1, 2))[:, upper[0], upper[1]]
        return self.top["out"](
            functional.relu(self.top["in"](torch.cat([x, products], 1)))
        ).squeeze(1)


def recommender() -> Learner:
    """A recommender, most of whose parameters are embeddings with dense gradients."""
    return Learner(Recommender(), click, clicks, 2048)
