"""Recurrent models over words."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from models.learner import Learner
from models.losses import next_word_of_recurrent
from models.parts import WORDS, Chain
from models.samples import text


class Recurrent(nn.Module):
    """One recurrent layer, without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class TwoLayerHead(nn.Module):
    """Logits of words by two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.relu(self.up(x)))


class RecurrentChain(Chain):
    """Recurrent layers; those of the head may be cut."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "last.part0.up": "colwise",
        "last.part0.down": "rowwise",
    }


def lstm() -> Learner:
    """LSTMs, one upon the other, that guess the next word."""
    blocks: list[nn.Module] = [Recurrent(nn.LSTM(384, 384, batch_first=True)) for _ in range(3)]
    net = RecurrentChain([nn.Embedding(WORDS, 384)], blocks, [TwoLayerHead(384)])
    return Learner(
        net, next_word_of_recurrent, text(32), 16, plan=RecurrentChain.tensor_parallel_plan
    )


class LastPosition(nn.Module):
    """Ten logits of the last position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, -1])


def _first_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return functional.cross_entropy(net(words), words[:, 0] % 10)


def gru() -> Learner:
    """GRUs, one upon the other, that sort sequences."""
    blocks: list[nn.Module] = [Recurrent(nn.GRU(448, 448, batch_first=True)) for _ in range(4)]
    net = Chain([nn.Embedding(WORDS, 448)], blocks, [LastPosition(448)])
    return Learner(net, _first_word, text(32), 16, momentum=0.9)
