"""What the tests of tensor, shard, context and expert train, and what they compare."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_tensors, whole

if TYPE_CHECKING:
    from core_testing.ranks import Rank

WORDS, WIDTH, HEADS = 11, 16, 4


def in_both_forms(cases: dict[str, tuple[Any, Any]], *kept: str) -> list[Any]:
    """Each case with both forms of a checkpoint, by hand but for the named.

    Args:
        cases: a source and a target by name.
        kept: as `"NAME"` or `"NAME in one file"`: one from each layout and one into it, whatever the other layout is.
    """
    found = []
    for suffix, form in (("", DistributedCheckpointIO), (" in one file", TorchCheckpointIO)):
        for name, case in cases.items():
            marks = () if name + suffix in kept else pytest.mark.exhaustive
            found.append(pytest.param(*case, form, id=name + suffix, marks=marks))
    return found


class Attention(nn.Module):
    """Causal attention, as it stands in small language models."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A small language model with a plan."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        **dict.fromkeys(("blocks.*.attention.out", "blocks.*.down"), "rowwise"),
        "blocks.*.up": "colwise",
    }

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        x = self.embed(words) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Step(Module):
    """A step whose loss is the mean over the words that count: of a batch, of a window, over all shares."""

    def __init__(self, make: Any = Net) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = make()
        self.scale = nn.Parameter(torch.ones(1))
        self.double()

    def compute(self, words: Tensor) -> Tensor:
        return self.net(words, torch.arange(words.shape[1]).expand_as(words))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        words = batch[0]
        answer = self.compute(words[:, :-1]) * self.scale
        targets = words[:, 1:].where(words[:, 1:] > 1, -100)
        loss = functional.cross_entropy(answer.flatten(0, 1), targets.flatten(), ignore_index=-100)
        # A penalty beside the call of the model.
        loss = loss + 0.01 * self.scale.square().sum()
        self.log("loss", loss)
        return {"loss": loss, "weight": int((targets != -100).sum())}

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Seen(Callback):
    """The weights at the end, whole."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def on_train_end(self, trainer: Any, module: Any) -> None:
        state = trainer.strategy.get_module_state_dict(module)
        self.weights = {name: whole(value, trainer.strategy) for name, value in state.items()}


class Saves(Callback):
    """A checkpoint at the end."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.path)


def loader(batch_size: int, num_samples: int = 30) -> Any:
    words = torch.randint(0, WORDS, (num_samples, 9), generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(words), batch_size=batch_size)


def train(rank: Rank, make: Any = Step, ckpt_path: Any = None, **options: Any) -> Any:
    """The weights after 10 batches, the fourth of each epoch uneven."""
    seen, module = Seen(), make()
    torch.manual_seed(5 + rank.number)
    trainer = rank.trainer(callbacks=seen, **{"max_steps": 10, "max_epochs": 10, **options})
    trainer.fit(module, loader(8 // rank.backend.data_parallel_size), ckpt_path=ckpt_path)
    return seen.weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


def on_mesh(
    num_processes: int, data_parallel_size: int, strategy: Any = MeshParallelStrategy, **options: Any
) -> Backend:
    """Ranks of such a mesh."""
    return Backend(partial(strategy, **options), "cpu", num_processes, data_parallel_size)


def assert_equals_one_device(backend: Backend, make: Any = Step, tolerance: float = 1e-12, **options: Any) -> None:
    """Train on a mesh and on one device, and compare the weights."""
    function = partial(train, make=make, **options)
    (weights, _), *_ = backend.run(function)
    expected, _ = one_device("cpu").run(function)[0]
    assert_equal_tensors(weights, expected, tolerance)


def begin(rank: Rank, path: Any, make: Any = Step) -> None:
    """Three batches, the last in the middle of an epoch, and a checkpoint."""
    trainer = rank.trainer(max_steps=3, max_epochs=10, callbacks=Saves(path))
    trainer.fit(make(), loader(8 // rank.backend.data_parallel_size))


def assert_goes_on(source: Backend, target: Backend, path: Any, make: Any = Step) -> None:
    """Begin a run on one mesh, and end it in the next epoch on another, or on one device."""
    whole = partial(train, make=make, max_steps=5)
    source.run(begin, path, make)
    weights, _ = target.run(partial(whole, ckpt_path=path))[0]
    expected, _ = one_device("cpu").run(whole)[0]
    assert_equal_tensors(weights, expected, 1e-12)
