from collections import namedtuple

import numpy as np
import pytest
import torch
from recording import (
    Numbers,
    Recorder,
    SaveAt,
    Validating,
    fit,
    flat,
    forget,
    loader,
    make_trainer,
    numbers,
    on_two,
    seen,
    stream,
)
from torch.utils.data import DataLoader, get_worker_info

from core import CheckpointError, CombinedLoader, ConfigurationError, Fabric
from core.fabric import seed_everything

LONG, SHORT = [[0, 1], [2, 3], [4, 5]], [[100, 101], [102, 103]]


def pair(**options):
    return {"a": loader(**options), "b": loader(4, start=100, **options)}


def test_a_batch_has_the_structure_of_the_loaders():
    Pair = namedtuple("Pair", "x y")
    (batch,) = CombinedLoader({"p": Pair(loader(2), [loader(2), (stream(2),)])})
    assert type(batch["p"]) is Pair
    assert [type(part) for part in batch["p"].y] == [torch.Tensor, tuple]
    assert [name for name, _ in CombinedLoader({"p": [loader(2), {"q": loader(2)}]}).leaves] == [
        "p.0",
        "p.1.q",
    ]


def test_a_loader_that_begins_again_shuffles_anew(tmp_path):
    loaders = {"a": loader(12, shuffle=True), "b": loader(4, start=100, shuffle=True)}
    torch.manual_seed(3)
    fit(tmp_path, loaders)
    passes = [
        flat([batch["b"] for batch in seen(tmp_path)[start : start + 2]]) for start in (0, 2, 4)
    ]
    assert [sorted(one) for one in passes] == [[100, 101, 102, 103]] * 3
    assert passes != [passes[0]] * 3
    assert sorted(flat([batch["a"] for batch in seen(tmp_path)])) == list(range(12))


CYCLED = [{"a": a, "b": b} for a, b in zip(LONG, [*SHORT, SHORT[0]], strict=True)]


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        (pair(), CYCLED),
        (CombinedLoader(pair(), "max_size_cycle"), CYCLED),
        (CombinedLoader(pair(), "min_size"), CYCLED[:2]),
        (CombinedLoader(pair(), "max_size"), [*CYCLED[:2], {"a": [4, 5], "b": None}]),
        (CombinedLoader(pair(), "sequential"), LONG + SHORT),
        ([loader(), loader(4, start=100)], [list(batch.values()) for batch in CYCLED]),
        ([torch.tensor([1]), torch.tensor([2])], [[1], [2]]),  # batches of one loader
        ([[torch.tensor([1]), torch.tensor([5])]], [[[1], [5]]]),
    ],
)
def test_training_reads(tmp_path, loaders, expected):
    trainer = fit(tmp_path, loaders, max_epochs=2)
    assert seen(tmp_path) == expected * 2
    assert trainer.num_training_batches == len(expected)


def test_batches_that_are_arrays():
    combined = CombinedLoader({"a": [np.ones(2)] * 2, "b": [np.ones(3)]}, "sequential")
    assert [len(batch) for batch in combined] == [2, 2, 3]


def test_no_loader_knows_its_length(tmp_path):
    fit(tmp_path, {"a": stream(), "b": stream(4)})
    assert [batch["b"] for batch in seen(tmp_path)] == [[0, 1], [2, 3], [0, 1]]
    with pytest.raises(TypeError):
        len(CombinedLoader({"a": stream()}))


@pytest.mark.parametrize(
    ("mode", "stop"),
    [
        *(
            (mode, stop)
            for mode in ("min_size", "max_size", "max_size_cycle", "sequential")
            for stop in (1, 2, 3, 4)
        ),
        ("max_size_cycle", 7),
        ("sequential", 9),
        ("sequential", 15),
    ],
)
def test_a_run_goes_on_in_the_middle(tmp_path, mode, stop):
    def loaders():
        return CombinedLoader(
            {
                "a": loader(10, shuffle=True),
                "b": loader(4, start=100, shuffle=True),
                "c": stream(6),
            },
            mode,
        )

    torch.manual_seed(1)
    saving = SaveAt(tmp_path / "middle.ckpt", stop)
    fit(tmp_path, loaders(), max_epochs=2, callbacks=saving)
    whole = seen(tmp_path)
    forget(tmp_path)
    torch.manual_seed(5)
    fit(tmp_path, loaders(), ckpt_path=tmp_path / "middle.ckpt", max_epochs=2)
    assert seen(tmp_path) == whole[stop:]


def test_another_number_of_ranks_goes_on(tmp_path):
    def loaders():
        return {"a": loader(16, shuffle=True), "b": loader(8, start=100)}

    saving = SaveAt(tmp_path / "middle.ckpt", 2)
    fit(tmp_path, loaders(), callbacks=saving)
    whole = seen(tmp_path)
    forget(tmp_path)
    path = tmp_path / "middle.ckpt"
    on_two(tmp_path, lambda trainer: trainer.fit(Recorder(tmp_path), loaders(), ckpt_path=path))
    ranks = [seen(tmp_path, rank=rank) for rank in (0, 1)]
    rest = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert [batch["a"] for batch in rest] == [batch["a"] for batch in whole[2:]]


def test_other_loaders_are_refused(tmp_path):
    saving = SaveAt(tmp_path / "middle.ckpt", 1)
    fit(tmp_path, pair(), callbacks=saving)
    message = (
        r"mode='max_size_cycle'\) with the loaders \['a', 'b'\]; this is "
        r"mode='max_size_cycle' with \['a', 'c'\]"
    )
    with pytest.raises(CheckpointError, match=message):
        fit(tmp_path, {"a": loader(), "c": loader()}, ckpt_path=tmp_path / "middle.ckpt")


def test_evaluation_reads_them_one_after_the_other(tmp_path):
    trainer = make_trainer(tmp_path)
    results = trainer.validate(Validating(tmp_path), pair())
    assert seen(tmp_path, "validation") == LONG + SHORT
    assert results == [{"total/dataloader_idx_0": 15.0}, {"total/dataloader_idx_1": 406.0}]
    assert trainer.num_val_batches == [3, 2]
    assert len(trainer.val_dataloaders) == 2


def test_evaluation_in_another_mode_has_one_result(tmp_path):
    trainer = make_trainer(tmp_path)
    (result,) = trainer.validate(Validating(tmp_path), CombinedLoader(pair(), "min_size"))
    assert seen(tmp_path, "validation") == [
        {"a": [0, 1], "b": [100, 101]},
        {"a": [2, 3], "b": [102, 103]},
    ]
    assert result == {"total": 6.0}
    assert trainer.num_val_batches == [2]


def test_mistakes():
    with pytest.raises(
        ConfigurationError, match=r"CombinedLoader\(mode='biggest'\): expected one of 'min_size'"
    ):
        CombinedLoader(pair(), mode="biggest")
    with pytest.raises(ConfigurationError, match="CombinedLoader got no loader"):
        CombinedLoader({})
    once = CombinedLoader({"a": loader(6), "b": iter(loader(4))}, "max_size_cycle")
    with pytest.raises(
        ConfigurationError, match="The loader 'b' gave no batch when it began again"
    ):
        list(once)


def test_fabric_and_the_trainer_give_the_same_batches_and_worker_seeds(tmp_path):
    """For the same two loaders and the same seed, in two epochs."""

    class Reader(Recorder):
        def training_step(self, batch, batch_idx):
            self.note("train", numbers(batch))
            return self.layer(torch.ones(1, 1)).mean()

    class Drawn(Numbers):
        """Samples with the seed of the worker that loads them."""

        def __getitem__(self, index):
            return torch.tensor([index, get_worker_info().seed])

    def begin():
        seed_everything(5)
        return Reader(tmp_path), [
            DataLoader(Drawn(8), batch_size=2, shuffle=True, num_workers=1) for _ in range(2)
        ]

    module, loaders = begin()
    make_trainer(tmp_path, max_epochs=2).fit(module, CombinedLoader(loaders))
    module, loaders = begin()
    fabric = Fabric(accelerator="cpu")
    fabric.setup(module, module.configure_optimizers())
    one, two = fabric.setup_dataloaders(*loaders)
    read = [
        [first.tolist(), second.tolist()]
        for _ in range(2)
        for first, second in zip(one, two, strict=True)
    ]
    assert seen(tmp_path) == read
    assert len({str(batch) for step in read for batch in step}) == 2 * len(read) == 16
