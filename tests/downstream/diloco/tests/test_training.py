"""What DiLoCo promises beside the kit: the outer step, the round in a checkpoint, what is sent, what is refused."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core import ConfigurationError, Fabric
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


def local_step(module: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    inputs, targets = batch(step, rank)
    optimizer.zero_grad()
    (module(inputs) - targets).square().mean().backward()
    optimizer.step()


def steps(fabric: Fabric, model: nn.Module, optimizer: Any, numbers: range) -> list[Tensor]:
    """Train; return the weights after each step."""
    seen = []
    for step in numbers:
        inputs, targets = batch(step, fabric.global_rank)
        optimizer.zero_grad()
        fabric.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        seen.append(weights(model))
    return seen


def train(rank: Any, make: Any, make_optimizer: Any, num_steps: int) -> tuple[list[Tensor], int, int]:
    fabric = rank.fabric()
    module = make()
    model, optimizer = fabric.setup(module, make_optimizer(module))
    seen = steps(fabric, model, optimizer, range(num_steps))
    return seen, fabric.strategy.bytes_sent, fabric.strategy.num_outer_steps


def algorithm(make: Any, num_steps: int, period: int, lr: float, momentum: float) -> list[list[Tensor]]:
    """The paper's algorithm 1 in one process, with torch's own SGD as the outer optimizer."""
    outer = make()
    outer_optimizer = torch.optim.SGD(outer.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    replicas = [copy.deepcopy(outer) for _ in range(RANKS)]
    optimizers = [sgd(replica) for replica in replicas]
    seen: list[list[Tensor]] = [[] for _ in range(RANKS)]
    for step in range(num_steps):
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            local_step(replica, optimizer, step, rank)
        if (step + 1) % period == 0:
            for parameter, *locals_ in zip(outer.parameters(), *(r.parameters() for r in replicas), strict=True):
                parameter.grad = torch.stack([parameter.detach() - local.detach() for local in locals_]).mean(0)
            outer_optimizer.step()
            for replica in replicas:
                replica.load_state_dict(outer.state_dict())
        for rank, replica in enumerate(replicas):
            seen[rank].append(weights(replica))
    return seen


def test_is_the_algorithm_of_the_paper() -> None:
    """Weights of every rank after every step, four rounds long."""
    results = backend(period=3).run(train, network, sgd, 12)
    for (seen, _, _), expected in zip(results, algorithm(network, 12, 3, 0.7, 0.9), strict=True):
        for mine, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_counts_what_it_sends() -> None:
    """One message of the model's size a round: a tenth of what an exchange in every step sends."""
    size = weights(network()).nbytes
    for _, sent, rounds in backend(period=10).run(train, network, sgd, 40):
        assert (sent, rounds) == (4 * size, 4)


def synchronize(rank: Any) -> tuple[Tensor, Tensor, Tensor, int, int]:
    fabric = rank.fabric()
    module = network()
    model, optimizer = fabric.setup(module, sgd(module))
    alone = steps(fabric, model, optimizer, range(2))[-1]
    before = fabric.strategy.bytes_sent
    fabric.strategy.synchronize_model()
    together, sent = weights(model), fabric.strategy.bytes_sent
    fabric.strategy.synchronize_model()
    assert fabric.strategy.bytes_sent == sent
    outer = steps(fabric, model, optimizer, range(2, 3))[-1]
    return alone, together, outer, sent - before, fabric.strategy.num_outer_steps


def test_shows_the_mean_of_the_ranks_and_goes_on_with_the_round() -> None:
    """What a validation and a checkpoint see is the mean of the ranks' parameters; it is no outer step."""
    results = backend(period=3).run(synchronize)
    mean = torch.stack([alone for alone, *_ in results]).mean(0)
    assert not torch.equal(results[0][0], results[1][0])
    for _, together, outer, sent, rounds in results:
        torch.testing.assert_close(together, mean, rtol=0, atol=1e-15)
        assert torch.equal(outer, results[0][2])
        assert (sent, rounds) == (2 * mean.nbytes, 1)  # parameters, and one moment each


def use_one_layer_each(rank: Any) -> list[list[Tensor]]:
    fabric = rank.fabric()
    module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    _, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters(), lr=0.1))
    fabric.backward(module[fabric.global_rank](torch.ones(1, 2)).sum())
    optimizer.step()
    fabric.strategy.synchronize_model()
    return [[optimizer.state[parameter][key] for key in ("step", "exp_avg")] for parameter in module.parameters()]


def test_ranks_share_the_moments_that_only_one_has() -> None:
    """A rank that has not used a layer in this round takes over the moments of one that has."""
    first, second = backend(period=3).run(use_one_layer_each)
    for mine, theirs in zip(first, second, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        torch.testing.assert_close(mine[0], torch.tensor(1.0))
        torch.testing.assert_close(mine[1], torch.full_like(mine[1], 0.1))


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
    """Each rank would skip steps of its own. On a CPU core refuses it first, so a stand-in has the name."""
    with pytest.raises(ConfigurationError, match="bf16-mixed"):
        DilocoStrategy(precision_plugin=SimpleNamespace(name="16-mixed")).check()
