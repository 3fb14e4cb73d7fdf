"""A pipeline computes what one device does, whatever a step does around the call of the model; or refuses it."""

from __future__ import annotations

import copy
import re
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pipelines
import pytest
import torch
from torch import nn

from core import ConfigurationError, CoreError
from core_parallel import MeshParallelStrategy
from core_parallel.pipeline.draws import Seeds
from core_parallel.stages import parts
from core_testing.ranks import Backend, one_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_testing.ranks import Rank


def on_ranks(sizes: dict[str, Any], num_processes: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call `function(rank, *args)` on every rank of such a mesh."""
    shares = num_processes // sizes.get("pipeline", 1)
    return Backend(partial(MeshParallelStrategy, **sizes), "cpu", num_processes, shares).run(function, *args)


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "num_samples", "options"),
    [
        # 30 samples: the last batch has 6, which 4 microbatches don't divide.
        ({"pipeline": 2, "microbatches": 4}, 2, 30, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}),
        pytest.param({"pipeline": 2}, 4, 32, {"noise": 0.0, "gradient_clip_val": 0.3}, marks=pytest.mark.slow),
        pytest.param({"pipeline": 4}, 4, 30, {"accumulate_grad_batches": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_all_stages_equal_one_device(
    sizes: dict[str, Any], num_processes: int, num_samples: int, options: dict[str, Any]
) -> None:
    function = partial(pipelines.run, num_samples=num_samples, **options)
    runs, expected = on_ranks(sizes, num_processes, function), one_device("cpu").run(function)[0]
    weights, steps, fitted, tested, predicted = runs[0]
    names = expected[0].keys()
    assert weights.keys() == names
    assert max(float((weights[name] - expected[0][name]).abs().max()) for name in names) < 1e-12
    torch.testing.assert_close(predicted, expected[4], rtol=0, atol=1e-12)
    assert tested[0] == pytest.approx(expected[3][0], abs=1e-12)
    assert fitted["loss_epoch"] == pytest.approx(expected[2]["loss_epoch"], abs=1e-12)
    if sizes["pipeline"] == num_processes:  # else a step's value is that of one share
        assert steps == pytest.approx(expected[1], abs=1e-12)
    for other in runs[1:]:  # callbacks of every rank see the same
        assert other[2]["loss_epoch"] == fitted["loss_epoch"]
        assert other[3] == tested


def test_a_number_of_microbatches_is_positive() -> None:
    with pytest.raises(ConfigurationError, match="microbatches=0: expected a positive number, or 'auto'"):
        MeshParallelStrategy(pipeline=2, microbatches=0)


def test_stages_have_about_as_many_parameters() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 30), nn.Linear(30, 2))
    stages = parts.cut(module, 3).stages
    assert [len(stage) for stage in stages] == [2, 1, 1]


def test_parts_that_share_a_weight_stay_together() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    assert [len(stage) for stage in parts.cut(module, 2).stages] == [3, 1]
    with pytest.raises(CoreError, match=r"has 2 part\(s\) that can be cut apart, and 3 stages were asked for"):
        parts.cut(module, 3)


class _Model(nn.Module):
    def __init__(self, *others: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.others = nn.ModuleList(others)

    def pipeline(self) -> list[Any]:
        return [self.first, self.last]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


class _NoParts(_Model):
    pipeline = None


class _Between(_Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())


class _Stranger(_Model):
    def pipeline(self) -> list[Any]:
        return [self.first, nn.Linear(4, 4)]


class _Listed(_Model):
    def pipeline(self) -> list[Any]:
        return [nn.ModuleList([self.first]), self.last]


class _Mean(_Model):
    def pipeline(self) -> list[Any]:
        return [self.first, self.last, torch.mean]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean()


class _Penalized(_Model):
    def pipeline(self) -> list[Any]:
        return [self.first, self.last, self.penalize]

    def penalize(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.first.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.penalize(super().forward(x))


class _Shrinks(_Model):
    def pipeline(self) -> list[Any]:
        return [self.shrink, self.first, self.last]

    def shrink(self, x: torch.Tensor) -> torch.Tensor:
        return x[: 4 if float(x.sum()) else 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.shrink(x))


class _Measures(nn.Sequential):
    class Part(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.num_calls = 0
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return super().forward(x)

    def __init__(self) -> None:
        super().__init__(self.Part(), nn.Linear(4, 4))


class _Keeps(_Model):
    def pipeline(self) -> list[Any]:
        return [self.first, self.keep, self.last]

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        self.balance = x.square().mean()
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.keep(self.first(x)))


class _Logs(_Keeps):
    def log(self, name: str, value: Any) -> None:
        """As a module of the Trainer has it."""

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        self.log("mean", x.mean())
        return x


class _Shape(_Model):
    def pipeline(self) -> list[Any]:
        return [self.first, self.last, lambda x: (x, "text")]


def _beside(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum() + model.first(x).sum() + model.last(x).sum()


def _penalized(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum() + sum(one.square().sum() for one in model.parameters())


def _decayed(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum() + sum(one.data.square().sum() for one in model.parameters())


def _tied(model: Any, x: torch.Tensor) -> torch.Tensor:
    result = model(x)
    return sum(nn.functional.linear(result, part.weight.T).sum() for part in (model.first, model.last))


def _averaged(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        torch.ones(4, 4).mul_(0.9).add_(model.first.weight.detach()).add_(model.last.weight.detach())
    return model(x).sum()


def _copied(model: Any, x: torch.Tensor) -> torch.Tensor:
    teacher = copy.deepcopy([model.first, model.last])
    return model(x).sum() + sum(part(x).sum() for part in teacher)


def _twice(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    return loss


_REFUSED: list[tuple[Callable[[], nn.Module], Any, str]] = [
    (_NoParts, None, "doesn't say what its parts are. Add `def pipeline"),
    (lambda: _NoParts(_Model(), _Model()), None, "several modules that could be cut: 'others.0', 'others.1'"),
    (_Listed, None, r"(?s)returned ModuleList.* at position 0; .* as in \[self.embed, \*self.blocks,"),
    (_Stranger, None, "returned a Linear that is no part of the module"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), None, "BatchNorm1d '1' would take its statistics"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)), None, "SyncBatchNorm '1' waits for all ranks"),
    (_Between, None, r"at the first difference forward computes aten.tanh.default to \(.*, and the parts"),
    (_Model, _beside, "was called, and another rank of the pipeline has it"),
    (_Model, _penalized, "square was called with a parameter or buffer that another stage has"),
    (_Model, _decayed, "square was called with a parameter or buffer that another stage has"),
    (_Model, _tied, "linear was called with a parameter or buffer that another stage has"),
    (_Model, _averaged, "add_ was called with a parameter or buffer that another stage has"),
    (_Model, _copied, "Linear .* was called, and another rank of the pipeline has it"),
    (_Model, _twice, "backward was called twice on one result"),
]


def _errors(rank: Rank) -> list[str]:
    errors = []
    for make, loss_of, _ in _REFUSED:
        fabric = rank.fabric()
        try:
            model = fabric.setup(make())
            x = torch.ones(8, 4)
            fabric.backward(model(x).sum() if loss_of is None else loss_of(model, x))
            errors.append("nothing")
        except CoreError as error:
            errors.append(str(error))
        fabric.teardown()
    return errors


@pytest.mark.slow
def test_what_cannot_be_right_is_refused_by_name() -> None:
    for errors in on_ranks({"pipeline": 2, "microbatches": 2}, 2, _errors):
        for error, (_, _, expected) in zip(errors, _REFUSED, strict=True):
            assert re.search(expected, error), error


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_Mean, r"a tensor of shape \(\) for a microbatch of 4 samples"),
        (_Shape, "returned a str; expected tensors"),
        (_Logs, r"self\.log\('mean'\) was called by a part of the model, of which this rank computes its own alone"),
        (_Shrinks, r"Stage 0 .* returned tensors of .*shape \(2, 4\).*, and before, .* of .*shape \(4, 4\)"),
        (_Keeps, "_Keeps keeps a tensor with a graph in its attribute 'balance', such as a loss of a part's own"),
        (_Penalized, "linear was called with a parameter or buffer that another stage has"),
        (_Measures, r"Stage 0 .* changes '0\.mean', '0\.num_calls' with each microbatch, .* Say microbatches=1"),
    ],
)
def test_results_of_a_stage_that_cannot_travel_are_refused(make: Any, expected: str) -> None:
    def call(rank: Rank) -> None:
        rank.fabric().setup(make())(torch.cat([torch.ones(4, 4), torch.zeros(4, 4)]))

    with pytest.raises(CoreError, match=expected):
        on_ranks({"pipeline": 2, "microbatches": 2}, 2, call)


def _drawn(rank: Rank) -> list[torch.Tensor]:
    fabric = rank.fabric()
    model = fabric.setup(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Dropout()))
    outputs = []
    for seed in (3, None, 3):
        if seed is not None:
            fabric.seed_everything(seed)
        outputs.append(model(torch.ones(8, 4)).detach())
    fabric.teardown()
    return outputs


def test_dropout_draws_anew_in_each_call_and_again_from_a_seed() -> None:
    (first, second, again), others = on_ranks({"pipeline": 2, "microbatches": 2}, 2, _drawn)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:4], first[4:]), "two microbatches have one mask"
    assert torch.equal(first, again)
    assert all(map(torch.equal, (first, second, again), others))


def test_each_stage_and_microbatch_draws_its_own_numbers_on_a_cpu() -> None:
    drawn = set()
    for stream in range(3):
        seeds = Seeds(1 << 61, stream, torch.device("cpu"))
        for stage in range(3):
            for microbatch in range(3):
                seeds.begin(stage, microbatch)
                drawn.add(torch.rand(1, dtype=torch.float64).item())
    assert len(drawn) == 27


def _refused(rank: Rank) -> str:
    zero_bubble = MeshParallelStrategy(pipeline=2, schedule="ZBVZeroBubble")
    with pytest.raises(
        ConfigurationError, match=r"compile=True with schedule='ZBVZeroBubble', which computes .* Use 'GPi"
    ):
        rank.fabric(zero_bubble, compile=True).setup(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))))
    fabric = rank.fabric()
    model = fabric.setup(_Model())
    with pytest.raises(ConfigurationError, match="LBFGS makes one vector of all parameters"):
        fabric.setup_optimizers(torch.optim.LBFGS(model.parameters()))
    return "refused"


def test_compiling_with_a_split_backward_and_lbfgs_are_refused() -> None:
    assert on_ranks({"pipeline": 2}, 2, _refused) == ["refused"] * 2


def compiled(rank: Rank, schedules: list[str | None]) -> Any:
    """Runs with compiled parts, and how often the compiler was called."""
    calls: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    strategies = [MeshParallelStrategy(pipeline=2, schedule=schedule) for schedule in schedules]
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # torch's compiler looks at it
    runs = [pipelines.run(rank, 16, 0.0, strategy=one, compile={"backend": backend}) for one in strategies]
    options = {"backend": backend, "region": "units"}
    runs.append(pipelines.run(rank, 16, 0.0, strategy=MeshParallelStrategy(pipeline=2), compile=options))
    return runs, len(calls)


@pytest.mark.slow
@pytest.mark.numbers
def test_compiled_parts_equal_one_device() -> None:
    expected = one_device("cpu").run(partial(pipelines.run, num_samples=16, noise=0.0))[0]
    for runs, num_calls in on_ranks({"pipeline": 2}, 2, compiled, [None, "1F1B"]):
        assert num_calls >= 3, "each part is compiled"
        for run in runs:
            torch.testing.assert_close(run[4], expected[4], rtol=0, atol=1e-12)
            assert run[1] == pytest.approx(expected[1], abs=1e-12)
