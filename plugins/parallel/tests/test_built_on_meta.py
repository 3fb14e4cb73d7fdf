"""Models that are built on meta and cut over shards and tensors begin as on one device, or don't train."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import Seen, Step, assert_equals_one_device, on_mesh
from mixtures import transformers_model
from pipelines import loader
from torch import Tensor, nn

from core import CoreError, Module
from core_testing.ranks import one_device
from core_testing.training import assert_equal_tensors

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class Scale(nn.Module):
    """A layer without values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, dtype=torch.float64))
        self.factor = nn.Buffer(torch.empty(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.factor


class Net(nn.Module):
    """A model in the manner of transformers: it gives first values to what is in it."""

    tensor_parallel_plan = {"up": "colwise", "down": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, dtype=torch.float64)
        self.scale, self.up, self.down = Scale(), linear(6, 8), linear(8, 2)
        self.apply(self._init_weights)

    def _init_weights(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.5)  # and its bias stays as it was
        if isinstance(part, Scale):
            nn.init.uniform_(part.weight)
            nn.init.constant_(part.factor, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.scale(x))))


class Unknown(Net):
    """One whose scale gets no values; its method is for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._init_weights()

    def apply(self, fn: Any) -> Any:
        return self if fn == self._init_weights else super().apply(fn)

    def _init_weights(self) -> None:  # type: ignore[override]  # others have a method of this name too
        nn.init.normal_(self.down.weight)


class OnMeta(Module):
    """A module whose model is built on meta where there are several ranks."""

    def __init__(self, make: Any = Net) -> None:
        super().__init__()
        self.make, self.net = make, None
        self.bias = nn.Parameter(torch.rand(2, dtype=torch.float64))  # with a value, of each rank's own

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(4)
            with torch.device("meta" if self.trainer.world_size > 1 else "cpu"):
                self.net = self.make()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.net is not None, "it has been built"
        return (self.net(batch[0]) + self.bias - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Words(Step):
    """A language model that is built on meta where there are several ranks."""

    def __init__(self, name: str) -> None:
        super().__init__(nn.Identity)
        self.name = name

    def configure_model(self) -> None:
        if isinstance(self.net, nn.Identity):
            torch.manual_seed(4)
            torch.set_default_dtype(torch.float64)  # in which it is drawn
            try:
                with torch.device("meta" if self.trainer.world_size > 1 else "cpu"):
                    self.net = transformers_model(self.name)
            finally:
                torch.set_default_dtype(torch.float32)

    def compute(self, words: Tensor) -> Tensor:
        return self.net(input_ids=words, use_cache=False).logits


def train(rank: Rank) -> dict[str, Tensor]:
    """The weights after 3 batches."""
    seen = Seen()
    torch.manual_seed(rank.number)
    shares = rank.backend.data_parallel_size
    rank.trainer(max_steps=3, callbacks=[seen]).fit(OnMeta(), loader(16, 4 // shares))
    return seen.weights


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_a_model_gives_its_own_first_values(sizes: dict[str, int]) -> None:
    weights = on_mesh(2, sizes.get("shard", 1), **sizes).run(train)[0]
    assert_equal_tensors(weights, one_device("cpu").run(train)[0], 1e-12)


def attempts(rank: Rank) -> list[str]:
    """The warning at set-up, and the errors of steps before there are values, and after."""
    fabric, said = rank.fabric(), []
    with torch.device("meta"):
        net = Unknown()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    said += [str(one.message) for one in caught if "built on the meta device" in str(one.message)]
    for state in (None, Net().state_dict()):
        if state is not None:
            fabric.strategy.load_module_state_dict(net, state)
        fabric.backward(model(torch.ones(4, 6, dtype=torch.float64)).sum())
        try:
            optimizer.step()
        except CoreError as error:
            said.append(str(error))
    fabric.teardown()
    return said


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_nothing_trains_without_values(sizes: dict[str, int]) -> None:
    for said in on_mesh(2, sizes.get("shard", 1), **sizes).run(attempts):
        warned, refused = said  # the last attempt says nothing
        assert "have no reset_parameters() that could give them values: scale. They hold NaN until" in warned
        assert refused.startswith("'scale.weight' of Unknown was built on the meta device, and nothing has given it")


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(("Llama", {axis: 2}) for axis in ("shard", "tensor", "pipeline")),
        *(("Mixtral", {axis: 2}) for axis in ("shard", "tensor", "pipeline", "expert")),
        ("Mixtral", {"expert": 2, "shard": 2}),
        ("Mixtral", {"expert": 2, "pipeline": 2}),
    ],
    ids=str,
)
def test_models_of_transformers_begin_as_on_one_device(name: str, sizes: dict[str, int]) -> None:
    pytest.importorskip("transformers")
    num_processes = 2 ** len(sizes)
    shares = num_processes // (sizes.get("tensor", 1) * sizes.get("pipeline", 1))
    assert_equals_one_device(on_mesh(num_processes, shares, **sizes), partial(Words, name), max_steps=3)
