"""What DiLoCo promises beside the kit: the outer step, what is sent, what is refused."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core import ConfigurationError
from core_testing import Backend
from torch import Tensor, nn

from core_diloco import DilocoStrategy

RANKS = 2


def backend(**options: Any) -> Backend:
    return Backend(partial(DilocoStrategy, **options), num_processes=RANKS)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Eight samples of a rank, with noise, of which each step has others."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(8, 1, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]], dtype=torch.float64) + 0.1 * noise


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()


def train(rank: Any, num_steps: int) -> tuple[list[Tensor], int, int]:
    """Weights after each step, bytes that were sent, and outer steps."""
    fabric, seen = rank.fabric(), []
    module = network()
    model, optimizer = fabric.setup(module, sgd(module))
    for step in range(num_steps):
        inputs, targets = batch(step, fabric.global_rank)
        optimizer.zero_grad()
        fabric.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        seen.append(weights(model))
    return seen, fabric.strategy.bytes_sent, fabric.strategy.num_outer_steps


def test_is_the_algorithm_of_the_paper() -> None:
    """Weights of every rank after every step, four rounds long."""

    def algorithm(num_steps: int, period: int) -> list[list[Tensor]]:
        """The paper's algorithm 1 in one process, with torch's own SGD as the outer optimizer."""
        outer = network()
        outer_optimizer = torch.optim.SGD(outer.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        replicas = [copy.deepcopy(outer) for _ in range(RANKS)]
        optimizers = [sgd(replica) for replica in replicas]
        seen: list[list[Tensor]] = [[] for _ in range(RANKS)]
        for step in range(num_steps):
            for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
                inputs, targets = batch(step, rank)
                optimizer.zero_grad()
                (replica(inputs) - targets).square().mean().backward()
                optimizer.step()
            if (step + 1) % period == 0:
                for parameter, *locals_ in zip(outer.parameters(), *(r.parameters() for r in replicas), strict=True):
                    parameter.grad = torch.stack([parameter.detach() - local.detach() for local in locals_]).mean(0)
                outer_optimizer.step()
                for replica in replicas:
                    replica.load_state_dict(outer.state_dict())
            for rank, replica in enumerate(replicas):
                seen[rank].append(weights(replica))
        return seen

    results = backend(period=3).run(train, 12)
    for (seen, _, _), expected in zip(results, algorithm(12, 3), strict=True):
        for mine, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_counts_what_it_sends() -> None:
    """One message of the model's size a round: a tenth of what an exchange in every step sends."""
    size = weights(network()).nbytes
    for _, sent, rounds in backend(period=10).run(train, 40):
        assert (sent, rounds) == (4 * size, 4)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"period": 0}, "period"),
        ({"period": True}, "period"),
        ({"outer_lr": 0.0}, "outer_lr"),
        ({"outer_lr": float("nan")}, "outer_lr"),
        ({"outer_momentum": 1.0}, "outer_momentum"),
    ],
)
def test_refuses_options_out_of_range(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{named} has to be"):
        DilocoStrategy(**options)


def test_refuses_a_scaled_loss() -> None:
    """Each rank would skip steps of its own. On a CPU core refuses it first, so a stand-in has the
    name.
    """
    with pytest.raises(ConfigurationError, match="bf16-mixed"):
        DilocoStrategy(precision_plugin=SimpleNamespace(name="16-mixed")).check()
