"""Two processes train a policy on the best of what a third one samples with the newest weights.

python examples/best_of_n.py --accelerator cpu
python examples/best_of_n.py --accelerator cpu --strategy fsdp

The task: write three digits backwards. The reward of a completion is the share of digits that are
right, and nobody shows the policy a right one: of 16 completions for each prompt the best is
learned (best-of-n, or rejection sampling). Needs core-weights: a `GroupSink` sends the weights,
whatever the strategy, and a `WeightReceiver` gets them.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core import Fabric
from core_weights import GroupSink, WeightReceiver

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

LENGTH = 3
NOTHING = 10  # stands where no digit has been written yet
NUM_PROMPTS = 64
NUM_COMPLETIONS = 16


class Policy(nn.Module):
    """Predicts the next digit of a completion."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Embedding(NOTHING + 1, 16)
        self.layers = nn.Sequential(nn.Linear(2 * LENGTH * 16, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, text: Tensor) -> Tensor:
        """Map prompts and what is written so far (batch, 2 * LENGTH) to logits of the next digit
        (batch, 10).
        """
        return self.layers(self.digits(text).flatten(1))


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor) -> Tensor:
    """Complete prompts (batch, LENGTH), digit by digit."""
    text = F.pad(prompts, (0, LENGTH), value=NOTHING)
    for place in range(LENGTH, 2 * LENGTH):
        text[:, place] = torch.multinomial(F.softmax(policy(text), dim=-1), num_samples=1)[:, 0]
    return text


def generate(address: str, samples: Queue[tuple[list[list[int]], float]]) -> None:
    """The engine: with each version of the weights, put the best completions and the mean reward of
    all.
    """
    torch.manual_seed(1)
    policy, receiver = Policy(), WeightReceiver(address)
    while receiver.load_into(policy):
        text = sample(
            policy,
            torch.randint(10, (NUM_PROMPTS, LENGTH)).repeat_interleave(NUM_COMPLETIONS, dim=0),
        )
        prompts, completions = text.split(LENGTH, dim=1)
        rewards = (completions == prompts.flip(1)).float().mean(1)
        best = rewards.view(NUM_PROMPTS, NUM_COMPLETIONS).argmax(1)
        best_text = text.view(NUM_PROMPTS, NUM_COMPLETIONS, -1)[torch.arange(NUM_PROMPTS), best]
        samples.put((best_text.tolist(), rewards.mean().item()))


def compute_loss(policy: nn.Module, text: Tensor) -> Tensor:
    """Cross entropy of completed texts (batch, 2 * LENGTH), all places of a completion in one
    batch.
    """
    seen = [
        F.pad(text[:, :place], (0, 2 * LENGTH - place), value=NOTHING)
        for place in range(LENGTH, 2 * LENGTH)
    ]
    return F.cross_entropy(policy(torch.cat(seen)), text[:, LENGTH:].T.flatten())


def train(fabric: Fabric, num_steps: int) -> None:
    fabric.seed_everything(0)
    policy = Policy()
    policy, optimizer = fabric.setup(policy, torch.optim.Adam(policy.parameters(), lr=0.01))
    stream, sink = fabric.weights(policy), GroupSink()
    if fabric.is_global_zero:
        context = multiprocessing.get_context("spawn")
        samples = context.Queue()
        engine = context.Process(target=generate, args=(sink.address, samples), daemon=True)
        engine.start()
    for step in range(num_steps + 1):
        sink.send(fabric, stream)
        best, reward = fabric.broadcast(samples.get(timeout=60) if fabric.is_global_zero else None)
        if step % 25 == 0:
            fabric.print(f"step {step:3d}   reward {reward:.2f}")
        share = torch.tensor(best[fabric.global_rank :: fabric.world_size], device=fabric.device)
        optimizer.zero_grad()
        fabric.backward(compute_loss(policy, share))
        optimizer.step()
    sink.close()
    if fabric.is_global_zero:
        engine.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--devices", default=2)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--steps", type=int, default=100)
    arguments = vars(parser.parse_args())
    num_steps = arguments.pop("steps")
    fabric = Fabric(**arguments)
    fabric.launch()
    train(fabric, num_steps)


if __name__ == "__main__":
    main()
