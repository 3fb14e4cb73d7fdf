"""A small language model with parts and a plan, and runs of it on meshes of several axes; workers import this."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from axes import WIDTH, WORDS, Attention, Saves, Seen, Step, loader
from torch import Tensor, nn
from torch.nn import functional

from core.checkpoint import TorchCheckpointIO
from core.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from core import Strategy
    from core_testing.ranks import Rank


class Start(nn.Module):
    """Words and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return self.embed(words) + self.place(places)


class Block(nn.Module):
    """Attention and a network, in which each weight is used once, with a number that isn't learned."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * self.attention(self.before(x))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Net(nn.Module):
    """Six parts, of which two schedules make four stages."""

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        **dict.fromkeys(("blocks.*.attention.out", "blocks.*.down"), "rowwise"),
        "blocks.*.up": "colwise",
    }

    def __init__(self, num_blocks: int = 4) -> None:
        super().__init__()
        self.start, self.blocks = Start(), nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, WORDS)

    def pipeline(self) -> list[Any]:
        return [self.start, *self.blocks, self.head]

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        x = self.start(words, places)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> Step:
    """Its step: a mean over the words that count, with a penalty beside the call."""
    return Step(Net)


def strategy_of(mesh: dict[str, Any] | None, form: Any = TorchCheckpointIO) -> Strategy:
    """The strategy of a mesh, or one of another package by its `alias`; without a mesh one device."""
    if mesh is None:
        return SingleDeviceStrategy(checkpoint_io=form())
    if "alias" in mesh:
        kinds = {"ddp": DDPStrategy, "fsdp": FSDPStrategy, "deepspeed_stage_2": _deepspeed_stage_2}
        return kinds[mesh["alias"]](checkpoint_io=form())
    return MeshParallelStrategy(checkpoint_io=form(), **mesh)


def _deepspeed_stage_2(**options: Any) -> Strategy:
    from core_deepspeed import DeepSpeedStrategy  # in an interpreter of its own

    return DeepSpeedStrategy(stage=2, **options)


def train(
    rank: Rank,
    mesh: dict[str, Any] | None,
    options: dict[str, Any],
    paths: tuple[Any, Any] = (None, None),
    form: Any = TorchCheckpointIO,
    make: Any = make,
) -> Any:
    """The weights after 10 batches, the fourth of each epoch uneven, and the metrics.

    Args:
        rank: this one.
        mesh: options of the strategy; None is one device.
        options: of the Trainer.
        paths: of checkpoints to begin from, and to write at the end.
        form: of checkpoints.
        make: the module.
    """
    seen = Seen()
    torch.manual_seed(5 + rank.number)
    callbacks = [seen] if paths[1] is None else [seen, Saves(paths[1])]
    trainer = rank.trainer(
        strategy=strategy_of(mesh, form), callbacks=callbacks, **{"max_steps": 10, "max_epochs": 20, **options}
    )
    shares = data_parallel_size(rank.backend.num_processes, mesh or {})
    # The last batch of an epoch has 5 samples, so that shares differ.
    trainer.fit(make(), loader(8 // shares, 29), ckpt_path=paths[0])
    return seen.weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


def carry(rank: Rank, mesh: dict[str, Any] | None, form: Any, source: Any, target: Any, make: Any = make) -> None:
    """A Fabric's checkpoint, read and written again; without a source after three steps.

    Args:
        rank: this one.
        mesh: options of the strategy; None is one device.
        form: of the checkpoint that is written.
        source: the path of a checkpoint, or None.
        target: the path to write to.
        make: the module.
    """
    fabric = rank.fabric(strategy_of(mesh, form))
    module = make().float()
    module.scale.requires_grad_(False)  # the loss leaves it out
    learning = [one for one in module.parameters() if one.requires_grad]
    model, optimizer = fabric.setup(module, torch.optim.AdamW(learning, lr=1e-2))
    state = {"model": model, "optimizer": optimizer}
    if source is not None:
        fabric.load(source, state)
    else:
        model.mark_forward_method("compute")
        for batch in fabric.setup_dataloaders(loader(8 // data_parallel_size(rank.backend.num_processes, mesh or {}))):
            fabric.step(model, batch, _loss)
            optimizer.step()
            optimizer.zero_grad()
    fabric.save(target, state)
    fabric.teardown()


def _loss(model: Any, batch: Any) -> Tensor:
    words = batch[0]
    return functional.cross_entropy(model.compute(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def read(rank: Rank, path: Any) -> Any:
    """All that a checkpoint holds, whole."""
    return rank.fabric("single_device").load(path)


def data_parallel_size(num_processes: int, mesh: dict[str, Any]) -> int:
    """Shares of the data."""
    return num_processes // (mesh.get("pipeline", 1) * mesh.get("context", 1) * mesh.get("tensor", 1))


def ranks(num_processes: int) -> Backend:
    """New processes for a mesh of that size: in those that left a group, torch's DTensors remember it."""
    return Backend(MeshParallelStrategy, "cpu", num_processes, timeout_s=270)  # the test has 300


def difference(mesh: dict[str, Any], num_processes: int, options: dict[str, Any], make: Any = make) -> float:
    """The largest difference of a weight from that of one device, or of a metric, if all ranks have all data."""
    own = partial(train, make=make)
    found, metrics = ranks(num_processes).run(own, mesh, options)[0]
    expected, logged = one_device("cpu").run(own, None, options)[0]
    assert found.keys() == expected.keys()
    logged = logged if data_parallel_size(num_processes, mesh) == 1 else {}
    of_metrics = [abs(metrics[name] - value) for name, value in logged.items()]
    return max(*(float((found[name] - value).abs().max()) for name, value in expected.items()), *of_metrics)


def assert_alike_in_float16(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """On average far less apart than one step of Adam moves them; float16 rounds small gradients to other signs."""
    apart = torch.cat([(found[name] - value).abs().flatten() for name, value in expected.items()])
    assert apart.mean() < 1e-3


def assert_goes_on(source: tuple[Any, int], target: tuple[Any, int], form: Any, path: Path, make: Any = make) -> None:
    """Begin a run in one layout, a mesh and its number of ranks, and end it in another, as on one device.

    It goes on in the middle of an epoch, and ends in the next.
    """
    trained, whole = partial(train, make=make), {"max_steps": 5}
    ranks(source[1]).run(trained, source[0], {"max_steps": 3}, (None, path), form)
    found, _ = ranks(target[1]).run(trained, target[0], whole, (path, None), form)[0]
    expected, _ = one_device("cpu").run(trained, None, whole)[0]
    assert_equal_tensors(found, expected, 1e-12)
