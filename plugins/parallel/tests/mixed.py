"""A small language model in parts, of which some have experts; workers import this."""

from __future__ import annotations

from axes import WIDTH, Step
from combined import Block, Net
from mixtures import NUM_EXPERTS, Stacked, one_expert
from torch import Tensor, nn

from core_parallel import ExpertList


class MixedBlock(Block):
    """A block whose network is a mixture; a choice of some tokens goes nowhere."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        del self.up, self.down
        self.gate, self.experts = nn.Linear(WIDTH, NUM_EXPERTS, bias=False), experts

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        tokens = self.between(x).flatten(0, 1)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        numbers = numbers.where(tokens[:, :2] < 1.2, NUM_EXPERTS)
        return x + self.experts(tokens, numbers, weights).view_as(x)


class MixedNet(Net):
    """Six parts; the second block and the last have experts, the first part and the last have none."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = MixedBlock(ExpertList(one_expert() for _ in range(NUM_EXPERTS)))
        self.blocks[1] = MixedBlock(Stacked())


class AtTheEnds(Net):
    """The first block and the last part are mixtures, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0] = MixedBlock(Stacked())
        self.head = nn.Sequential(MixedBlock(ExpertList(one_expert() for _ in range(NUM_EXPERTS))), self.head)


def make() -> Step:
    """The step of the combinations."""
    return Step(MixedNet)


def make_at_the_ends() -> Step:
    """The same with experts in the first and the last part."""
    return Step(AtTheEnds)
