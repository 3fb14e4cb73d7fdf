"""Models that are built on meta begin with the weights of one device, and no rank ever has all of them."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import Saves, Seen
from pipelines import loader
from torch import Tensor, nn

from core import CoreError, Fabric, Module
from core_parallel import ExpertList, MeshParallelStrategy
from core_parallel.stages import first_values
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_tensors

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class Scaled(nn.Module):
    """A module that begins with values of its own, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.empty(4)), nn.Buffer(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.scale)
        nn.init.normal_(self.offset)


class Initialized(nn.Module):
    """A model in the manner of transformers: it draws once more, for all that is in it."""

    def __init__(self, inside: bool = True) -> None:
        super().__init__()
        self.inside = Initialized(inside=False) if inside else Scaled()
        self.embed, self.head = nn.Embedding(3, 4), nn.Linear(4, 3)
        for child in (*self.inside.modules(), self.embed, self.head):
            if not getattr(child, "drawn", False):
                self._init_weights(child)
                child.drawn = True  # type: ignore[assignment]

    def _init_weights(self, part: nn.Module) -> None:
        if isinstance(part, nn.Embedding | nn.Linear):
            nn.init.normal_(part.weight, std=0.5)


class TiedLater(Initialized):
    """A head that gets the embedding's weight after both were drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


class Tied(nn.Sequential):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))
        self[1].weight = self[0].weight


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


@pytest.mark.parametrize(
    "make",
    [
        *(Scaled, Initialized, TiedLater, Tied, lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda: nn.BatchNorm1d(3)),
        lambda: ExpertList(nn.Linear(4, 3) for _ in range(2)),
    ],
)
def test_each_part_draws_what_it_draws_on_one_device(make: Any) -> None:
    strategy = Fabric(accelerator="cpu").strategy
    torch.manual_seed(3)
    expected, after = _tensors(make()), torch.rand(2)
    torch.manual_seed(3)
    with torch.device("meta"):
        module = make()
    before = _tensors(module)
    own = list(before.values())[::2]
    assert first_values.is_needed(module, strategy)
    first_values.fill(module, strategy, lambda tensor: any(tensor is one for one in own))
    assert torch.equal(torch.rand(2), after)
    for name, tensor in _tensors(module).items():
        assert tensor is before[name], "it is the same object"
        assert tensor.is_meta != any(tensor is one for one in own)
        assert tensor.is_meta or torch.equal(tensor, expected[name]), name


class _Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.ParameterDict({"weight": nn.Parameter(torch.empty(2))})


def test_a_part_without_first_values_is_named() -> None:
    with torch.device("meta"):
        module = _Unknown()
    with pytest.warns(UserWarning, match=r"1 submodules were built on the meta device and have no .*: inside\. They"):
        first_values.fill(module, Fabric(accelerator="cpu").strategy, lambda _: True)
    assert module.inside["weight"].isnan().all()


class OnMeta(Module):
    """A module whose model is built on meta, or as ever."""

    def __init__(self, on_meta: bool) -> None:
        super().__init__()
        self.net: Any = None
        self.on_meta = on_meta

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(4)
            with torch.device("meta" if self.on_meta else "cpu"):
                self.net = _Layers()  # in the format in which it is drawn

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class _Layers(nn.Sequential):
    def __init__(self) -> None:
        linear = partial(nn.Linear, dtype=torch.float64)
        norm = nn.LayerNorm(8, dtype=torch.float64)
        super().__init__(linear(6, 8), nn.Tanh(), norm, linear(8, 8), nn.Tanh(), linear(8, 2))


def train(rank: Rank, on_meta: bool, path: Path, **options: Any) -> dict[str, Tensor]:
    seen, module = Seen(), OnMeta(on_meta)
    trainer = rank.trainer(callbacks=[seen, Saves(path)], **options)
    trainer.fit(module, loader(16, 4), ckpt_path=path if path.exists() else None)
    return seen.weights


def go_on(rank: Rank, on_meta: bool, path: Path) -> Any:
    """The weights after an epoch, and after another one from its checkpoint, by a module of its own."""
    return [train(rank, on_meta, path, max_epochs=number) for number in (1, 2)]


def _records_of(action: Any) -> list[str]:
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("core_parallel.strategy")
    handler.emit = records.append  # type: ignore[method-assign,assignment]  # all that it is to do
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        action()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [record.getMessage() for record in records]


def on_ranks(rank: Rank, path: Path) -> Any:
    """Weights, the parameters that a rank has of what Fabric has built, and how ranks that differ are refused."""
    weights, fabric = go_on(rank, True, path), rank.fabric()
    with fabric.init_module(empty_init=True):
        module = _Layers()
    was_empty = all(one.is_meta for one in module.parameters())
    fabric.setup(module)
    own = [name for name, one in module.named_parameters() if not one.is_meta]
    told = _records_of(lambda: fabric.setup(_Layers()))
    with torch.device("meta" if rank.number else "cpu"):
        other = _Layers()
    with pytest.raises(CoreError, match="built on the meta device on some ranks, and with values on others"):
        fabric.setup(other)
    fabric.teardown()
    return weights, was_empty, own, told


def test_a_pipeline_that_was_built_on_meta_equals_one_device(tmp_path: Path) -> None:
    runs = Backend(partial(MeshParallelStrategy, pipeline=2), "cpu", 2, 1).run(on_ranks, tmp_path / "two.ckpt")
    expected = one_device("cpu").run(go_on, False, tmp_path / "one.ckpt")[0]
    for found, of_one in zip(runs[0][0], expected, strict=True):
        assert_equal_tensors(found, of_one, 1e-12)
    assert [run[1] for run in runs] == [True, True]
    assert [run[2] for run in runs] == [
        ["0.weight", "0.bias", "2.weight", "2.bias"],
        ["3.weight", "3.bias", "5.weight", "5.bias"],
    ]
    (told,), others = runs[0][3], runs[1][3]
    assert told.startswith(
        "_Layers was built whole on every rank, and rank 0 has let go of 0 MiB that other stages have"
    )
    assert not others, "rank 0 speaks for all"
