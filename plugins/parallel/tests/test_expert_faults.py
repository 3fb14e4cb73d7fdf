"""The comparison with one device sees what may go wrong with experts: each fault is put in, and is seen."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from axes import on_mesh, train
from faults import compares_no_ranks
from mixtures import MixtureStep

from core_parallel.experts import dispatch, expert_modules
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from core_testing.ranks import Rank

_route, _average = dispatch.route, expert_modules.average


def _to_another_expert(numbers: Any, num_experts: int, group: Any) -> Any:
    routes = _route(numbers, num_experts, group)
    return replace(routes, experts=(routes.experts + 1) % (num_experts // group.size()))


def _to_another_rank(numbers: Any, num_experts: int, group: Any) -> Any:
    is_number = numbers < num_experts
    return _route(((numbers + num_experts // 2) % num_experts).where(is_number, numbers), num_experts, group)


def _over_all(parameters: Any, mesh: Any) -> Any:
    return list(parameters)


def _shared_alone(parameters: Any, mesh: Any) -> Any:
    _average(parameters, mesh)
    return []


def _experts_alone(parameters: Any, mesh: Any) -> Any:
    return [one for one in parameters if not expert_modules.is_expert(one)]


FAULTS: dict[str, AbstractContextManager[Any]] = {
    "none": nullcontext(),
    "a token goes to another expert": mock.patch.object(dispatch, "route", _to_another_expert),
    "a token goes to another rank": mock.patch.object(dispatch, "route", _to_another_rank),
    "an expert's gradient is averaged over all ranks": mock.patch.object(expert_modules, "average", _over_all),
    "shared gradients aren't averaged": mock.patch.object(expert_modules, "average", _shared_alone),
    "an expert's copies go apart": mock.patch.object(expert_modules, "average", _experts_alone),
    "an expert's gradient is a sum": mock.patch.object(dispatch, "local_part", lambda parameter: parameter.to_local()),
}


def _fit_with_all(rank: Rank) -> list[Any]:
    """The weights with each fault, in one group of ranks."""
    found = []
    for fault in FAULTS.values():
        with compares_no_ranks(), fault:
            found.append(train(rank, MixtureStep, max_steps=3, gradient_clip_val=0.1)[0])
    return found


@pytest.mark.slow
@pytest.mark.numbers
def test_a_fault_of_experts_is_seen() -> None:
    expected = one_device("cpu").run(lambda rank: train(rank, MixtureStep, max_steps=3, gradient_clip_val=0.1))[0][0]
    for name, weights in zip(FAULTS, on_mesh(4, 4, expert=2).run(_fit_with_all)[0], strict=True):
        differs = max(float((weights[key] - value).abs().max()) for key, value in expected.items())
        assert differs < 1e-12 if name == "none" else differs > 1e-6, (name, differs)
