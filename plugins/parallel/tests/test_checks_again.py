"""What held at the first call and doesn't at a later one is refused there: under context, a pipeline and tensor."""

from __future__ import annotations

import random
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import WIDTH, WORDS, Block, Net, on_mesh
from torch import Tensor, nn
from torch.nn import functional

from core import CoreError
from core_parallel.modules.check_keys import CheckKeys

if TYPE_CHECKING:
    from core_testing.ranks import Rank

# context ------------------------------------------------------------------------------------------------------------


class _Mixing(Net):
    """Looks at neighbours, of which parts of a sequence lack one."""

    def mixes(self, words: Tensor, places: Tensor) -> bool:
        return True

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        return answer + answer.roll(1, 1) if self.mixes(words, places) else answer


class _InTraining(_Mixing):
    def mixes(self, words: Tensor, places: Tensor) -> bool:
        return self.training


class _WhenLong(_Mixing):
    def mixes(self, words: Tensor, places: Tensor) -> bool:
        return words.shape[1] > 4


class _LaterOn(_Mixing):
    fades_in: Any = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.fades_in = 0.0

    def mixes(self, words: Tensor, places: Tensor) -> bool:
        return self.fades_in > 0


class _Gated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        return answer + self.gate * answer.roll(1, 1)


class _Packed(Net):
    """Attends within packed samples, which it finds by their positions as transformers does."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        borders = (places.diff(dim=1) != 1).sum(1) > 0
        return answer + borders[:, None, None].to(answer)


def _at_second_call(model: Any, net: Any) -> None:
    words = torch.zeros(3, 8, dtype=torch.long)
    places = torch.arange(8).expand_as(words)
    with torch.no_grad():
        if isinstance(net, _InTraining):
            net.eval()
            model(words, places)
            net.train()
        elif isinstance(net, _WhenLong):
            model(words[:, :4], places[:, :4])
        elif isinstance(net, _LaterOn):
            model(words, places)
            net.fades_in = 0.5
        elif isinstance(net, _Packed):
            model(words, places)
            places = torch.cat([places[:, :4], places[:, :4]], 1).where(torch.arange(3)[:, None] == 1, places)
        with pytest.raises(CoreError, match="computes other values where each of 2 ranks has a part of the sequence"):
            model(words, places)


def _look_again(rank: Rank) -> None:
    for make in (_InTraining, _WhenLong, _LaterOn, _Gated, _Packed):
        fabric, net = rank.fabric(), make()
        _at_second_call(fabric.setup(net), net)
        fabric.teardown()


class _Dropping(Net):
    """Leaves out layers by draws of a single number, and drops values."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        x = self.embed(words) + self.place(places)
        for block in [*self.blocks, *self.blocks]:
            if not self.training or torch.rand(()) > 0.5:
                x = functional.dropout(block(x), 0.5, self.training)
        return self.head(x)


def _layers_are_left_out(rank: Rank) -> None:
    fabric = rank.fabric()
    model = fabric.setup(_Dropping())
    for _ in range(6):  # a rank that left out another layer would wait
        model(torch.zeros(3, 8, dtype=torch.long), torch.arange(8).expand(3, 8)).sum().backward()
    fabric.teardown()


class _Keeping(Net):
    """Keeps a loss of its own, from the second call on."""

    def forward(self, words: Tensor, places: Tensor, keeps: bool = False) -> Tensor:
        answer = super().forward(words, places)
        if keeps:
            self.loss = answer.square().mean()
        return answer


def _a_loss_is_kept(rank: Rank) -> None:
    fabric = rank.fabric()
    model, words = fabric.setup(_Keeping()), torch.zeros(3, 8, dtype=torch.long)
    model(words, torch.arange(8).expand(3, 8))
    with pytest.raises(CoreError, match="_Keeping keeps a tensor with a graph in its attribute 'loss'"):
        model(words, torch.arange(8).expand(3, 8), keeps=True)
    fabric.teardown()


def _all(rank: Rank) -> None:
    _look_again(rank)
    _layers_are_left_out(rank)
    _a_loss_is_kept(rank)


def test_a_sequence_in_parts_is_compared_again_at_another_key() -> None:
    on_mesh(2, 1, context=2).run(_all)


# pipeline -----------------------------------------------------------------------------------------------------------


class _Piped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.fades_in = 0.0

    def pipeline(self) -> Any:
        return list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        if self.fades_in or (self.training and x.shape[0] > 4):
            x = x * 2
        return self.layers[1](x)


def _forward_again(rank: Rank) -> None:
    for is_long in (False, True):
        fabric, net = rank.fabric(), _Piped()
        model = fabric.setup(net)
        model(torch.ones(4, 4))
        net.fades_in = 0.0 if is_long else 0.5
        with pytest.raises(CoreError, match=r"_Piped\.forward isn't its parts .* forward computes aten\.mul\.Tensor"):
            model(torch.ones(8 if is_long else 4, 4))
        fabric.teardown()


class _LeavingOut(_Piped):
    """Leaves out a layer by a draw of Python."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if random.random() >= 0.01:
                x = layer(x)
        return x


def _layers_left_out(rank: Rank) -> None:
    fabric = rank.fabric()
    random.seed(0)
    with pytest.raises(CoreError, match=r"_LeavingOut\.forward isn't its parts"):
        fabric.setup(_LeavingOut())(torch.ones(4, 4))
    fabric.teardown()


def _forwards(rank: Rank) -> None:
    _forward_again(rank)
    _layers_left_out(rank)


def test_parts_of_a_pipeline_are_compared_again_at_another_key() -> None:
    on_mesh(2, 1, pipeline=2).run(_forwards)


class _Stages(nn.Sequential):
    fades_in = 0.0


def _of_labels(model: Any, batch: Any, module: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], ignore_index=-100)


def _contrastive(model: Any, batch: Any, module: Any) -> Tensor:
    answer = model(batch[0])
    return answer.square().mean() + module.fades_in * (answer @ answer.T).logsumexp(1).mean()


def _sum_of_zeros(model: Any, batch: Any, module: Any) -> Tensor:
    return model(batch[0]).square().sum()


def _losses_again(rank: Rank) -> None:
    inputs, labels = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(8, dtype=torch.long)
    uneven = torch.where(torch.arange(8) < 3, -100, labels)
    for loss in (_of_labels, _contrastive, _sum_of_zeros):
        net: Any = _Stages(nn.Linear(4, 4), nn.Linear(4, 4))
        fabric: Any = rank.fabric()
        net.fades_in = 0.0
        if loss is _sum_of_zeros:
            nn.init.zeros_(net[1].weight)
            nn.init.zeros_(net[1].bias)
        model = fabric.setup(net)
        step = partial(_lossy, loss, model, net)
        if loss is not _sum_of_zeros:
            fabric.strategy.compute_loss(step, [inputs, labels], net)
        net.fades_in = 0.5 if loss is _contrastive else 0.0
        with pytest.raises(CoreError, match=r"loss for a batch is .*, and the mean of those for its 2 microbatches"):
            fabric.strategy.compute_loss(step, [inputs, uneven], net)
        fabric.teardown()


def _lossy(loss: Any, model: Any, net: nn.Module, batch: Any) -> Tensor:
    found: Tensor = loss(model, batch, net)
    return found


def test_losses_of_microbatches_are_compared_again_at_another_key() -> None:
    on_mesh(2, 1, pipeline=2, schedule="GPipe", microbatches=2).run(_losses_again)


# tensor -------------------------------------------------------------------------------------------------------------


class _Mlp(nn.Module):
    def __init__(self, between: Any) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(WIDTH, 8), between, nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The answer, and this rank's part of what it was made of, as attention returns weights of its own heads."""
        hidden = self.between(self.up(x))
        return x + self.down(hidden), hidden


class _Planned(nn.Module):
    tensor_parallel_plan = {"mlp.up": "colwise", "mlp.down": "rowwise"}

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.mlp = _Mlp(between)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)[0]


class _Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x >= x.topk(4, dim=-1).values[..., -1:])


class _Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:])


class _NormLater(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 2 else x


_VALUES = r"_Mlp 'mlp' computes other values with the layers that the tensor plan cuts than whole"
_BETWEEN: list[tuple[Any, str]] = [
    (partial(nn.Softmax, dim=-1), _VALUES),
    (_Largest, _VALUES),
    (_Norm, _VALUES),
    (_NormLater, _VALUES),
    (nn.PReLU, r"other gradients of 'mlp\.between\.weight'.*'replicated_with_grad_allreduce'"),
    (partial(nn.Dropout, 0.5), ""),
    (nn.GELU, ""),
]


def _between(rank: Rank) -> list[str]:
    found = []
    for make, _ in _BETWEEN:
        torch.manual_seed(0)
        fabric, said = rank.fabric(), ""
        model = fabric.setup(_Planned(make()))
        try:
            for number in (2, 4):
                fabric.backward(model(torch.randn(number, WIDTH)).square().mean())
        except CoreError as error:
            said = str(error)
        found.append(said)
        fabric.teardown()
    return found


def test_a_plan_that_cuts_what_needs_whole_values_is_refused() -> None:
    for found in on_mesh(2, 1, tensor=2).run(_between):
        for said, (make, expected) in zip(found, _BETWEEN, strict=True):
            assert re.search(expected, said) if expected else not said, (make, said)


# keys ---------------------------------------------------------------------------------------------------------------


def test_a_counter_is_no_part_of_a_key() -> None:
    module: Any = Block()
    keys = CheckKeys(module)
    due = []
    for number in range(40):
        module.count, module.is_late = number, number >= 30
        due.append(keys.is_due())
    # The fourth value of a counter is one too many; then calls 16 and 31, which is a new key.
    assert [number for number, one in enumerate(due) if one] == [0, 1, 2, 3, 15, 30]
    assert keys.is_due(WORDS)
