"""A run that goes back to a kept state ends as if it had never gone on from it."""

import gc
import os
import random
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from core import Capability, ConfigurationError, DataModule, Trainer, UnsupportedError
from core.callbacks import (
    Callback,
    EarlyStopping,
    GoBack,
    LambdaCallback,
    MemoryCheckpoint,
    ModelCheckpoint,
)
from core.checkpoint import load_checkpoint
from core.contract import CheckpointNotFoundError
from core.strategies import SingleDeviceStrategy
from core_parallel import MeshParallelStrategy
from core_testing import Backend, in_one_process
from support.resuming import NUM_FEATURES, NUM_SAMPLES, Listener, Net, Samples, count_batches
from support.same import assert_same
from support.small_nets import QUIET

pytestmark = pytest.mark.filterwarnings("ignore:EarlyStopping")
STEPS_PER_EPOCH = 5
SHUFFLED = {"shuffle": True}


class Stream(IterableDataset):
    """Without a position of its own: it is read again."""

    def __iter__(self):
        for _ in range(NUM_SAMPLES):
            yield torch.rand(NUM_FEATURES) + random.random(), torch.rand(1)


def adam(parameters):
    """With a scheduler by step and one by epoch."""
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return [optimizer], [{"scheduler": by_step, "interval": "step"}, by_epoch]


def make_net():
    return Net(adam, nn.LayerNorm)


class Data(DataModule):
    def __init__(self, make=lambda: Samples(augments=True), **options):
        super().__init__()
        self.make, self.options = make, options

    def train_dataloader(self):
        return DataLoader(self.make(), **self.options)

    def val_dataloader(self):
        return DataLoader(Samples(), 7)


def trainer_of_one(**options):
    return Trainer(**QUIET | options)


def fit_alone(*callbacks, batch_size=4, ckpt_path=None, resume="all", **options):
    trainer = trainer_of_one(callbacks=list(callbacks), **options)
    trainer.fit(
        make_net(), datamodule=Data(batch_size=batch_size), ckpt_path=ckpt_path, resume=resume
    )
    return trainer


class Back(Callback):
    """Goes back once after step `at`: to `to` says rank 0, which counts, and others say less."""

    def __init__(self, memory, at, to):
        self.memory, self.at, self.to = memory, at, to
        self.starts, self.asked, self.kept, self.asked_at_s = [], False, [], 0.0

    def on_train_start(self, trainer, module):
        self.starts.append(trainer.global_step)
        assert trainer.progress.elapsed_s >= self.asked_at_s  # time isn't put back
        assert not self.asked or self.memory.kept[-1] == trainer.global_step

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.local_rank:
            return  # the first rank of a node writes
        files = sorted(path.name for path in Path(self.memory._folder).glob("core-*/*.ckpt"))
        assert files == [f"step-{step:012}.ckpt" for step in self.memory.kept]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.at and not self.asked and not trainer.count_unfinished():
            self.asked, self.kept, self.asked_at_s = (
                True,
                list(self.memory.kept),
                trainer.progress.elapsed_s,
            )
            self.memory.go_back(trainer, self.to and self.to - trainer.global_rank)


def fit(rank, folder, to=None, at=None, keep=3, every=1, data=(), loader=SHUFFLED, **options):
    """Three epochs; `at` a step it goes back."""
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    name = "back" if at else "straight"
    memory = MemoryCheckpoint(every, folder, keep=keep)
    back, saver = (
        Back(memory, at, to),
        ModelCheckpoint(folder / name, every_n_train_steps=4, save_top_k=-1),
    )
    callbacks = [back, EarlyStopping("val_loss", patience=9), memory, saver, Listener()]
    given = {"max_epochs": 3, "enable_checkpointing": True, "default_root_dir": folder, **options}
    trainer = rank.trainer(callbacks=callbacks, **given)
    module, size = make_net(), NUM_SAMPLES // STEPS_PER_EPOCH // rank.backend.num_processes
    trainer.fit(module, datamodule=Data(*data, batch_size=size, **loader))
    trainer.save_checkpoint(folder / f"{name}.ckpt")
    return back, module.events


def straight_and_back(rank, folder, case):
    return fit(rank, folder, **{**case, "at": None})[1], *fit(rank, folder, **case)


def state_at_the_end(path):
    state = load_checkpoint(path)
    del state["progress"]["elapsed_s"]
    for own in state["ranks"]:
        own["metrics"]["values"] = dict(sorted(own["metrics"]["values"].items()))
    state["callbacks"] = {
        name: own for name, own in state["callbacks"].items() if "ModelCheckpoint" not in name
    }
    return state


def check(folder, results, *, at, begins, per_step=1):
    for expected, back, found in results:
        assert back.starts == [0, begins]
        assert count_batches(found) == count_batches(expected) + (at - begins) * per_step
        # What counts is how each came last. An epoch has no third part.
        last = [
            {event[: 2 + (event[0] != "epoch")]: event for event in events}
            for events in (expected, found)
        ]
        assert last[0] == last[1]
    assert_same(state_at_the_end(folder / "back.ckpt"), state_at_the_end(folder / "straight.ckpt"))
    files = [
        {name.replace("-v1", "") for name in os.listdir(folder / name)}
        for name in ("straight", "back")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        pytest.param("fsdp", marks=pytest.mark.slow),
        pytest.param("parallel", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_back_as_if_it_had_not_gone_on(tmp_path, strategy):
    backends = {
        "ddp": Backend(lambda: "ddp", num_processes=2, in_process=True),
        "fsdp": Backend(lambda: "fsdp", num_processes=2),
        "parallel": Backend(lambda: MeshParallelStrategy(data=2, shard=2), num_processes=4),
    }
    results = backends[strategy].run(straight_and_back, tmp_path, {"at": 8, "to": 4, "keep": 5})
    # over the beginning of an epoch, with a validation and a file in between
    check(tmp_path, results, at=8, begins=4)
    assert results[0][1].kept == [3, 4, 5, 6, 7]


CASES = {
    "to the newest": ({"at": 9}, 8, 1),
    "to the newest that is old enough": ({"at": 9, "every": 4, "to": 7}, 4, 1),
    "after its last batch": ({"at": 7, "to": 5}, 5, 1),
    "accumulated": ({"at": 2, "to": 1, "accumulate_grad_batches": 2}, 1, 2),
    "a stream": ({"at": 8, "to": 7, "data": [Stream], "loader": {}}, 7, 1),
    "workers": (
        {
            "at": 9,
            "to": 7,
            "loader": {"num_workers": 1, "persistent_workers": True},
            "seed_samples": True,
        },
        7,
        1,
    ),
    "other loaders in each epoch": (
        {"at": 8, "to": 4, "keep": 6, "reload_dataloaders_every_n_epochs": 1},
        4,
        1,
    ),
    "with a bar": ({"at": 8, "to": 7, "enable_progress_bar": True}, 7, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_wherever_it_is_and_goes_to(tmp_path, case):
    alone = SimpleNamespace(trainer=trainer_of_one, backend=SimpleNamespace(num_processes=1))
    options, begins, per_step = CASES[case]
    results = [straight_and_back(alone, tmp_path, options)]
    check(tmp_path, results, at=options["at"], begins=begins, per_step=per_step)
    assert not list(tmp_path.glob("core-*"))  # nothing is left of a run that has ended


@pytest.mark.parametrize(
    ("strategy", "begins"), [("ddp", 3), pytest.param("fsdp", 4, marks=pytest.mark.slow)]
)
def test_what_is_damaged_on_one_node_is_passed_over_by_all(tmp_path, strategy, begins):
    class Damages(Callback):
        """Damages a kept state of one node before the run goes back."""

        def __init__(self, folder, at, damaged):
            self.folder, self.at, self.damaged = folder, at, damaged

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == self.at and trainer.global_rank == 1:
                [path] = self.folder.rglob(f"step-*{self.damaged}.ckpt")
                for file in path.glob("*.data") if path.is_dir() else [path]:
                    file.write_bytes(file.read_bytes()[:-1] + b"x")

    def fit_on_node(memory, strategy):
        """A node for each rank, with a memory of its own."""
        rank = os.environ["RANK"]
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": rank}
        memory = MemoryCheckpoint(folder=memory[int(rank)], keep=4)
        back = Back(memory, 5, 4)
        callbacks = [Damages(memory._folder, 5, 4), back, memory]
        trainer = Trainer(
            **QUIET, strategy=strategy, max_epochs=1, callbacks=callbacks, devices=1, num_nodes=2
        )
        trainer.fit(make_net(), datamodule=Data(batch_size=1))
        return back.starts, back.kept

    memory = [tmp_path / "first", tmp_path / "second"]
    for folder in memory:
        folder.mkdir()
    # Of shards the next node has a copy.
    assert in_one_process(fit_on_node, memory, strategy) == [([0, begins], [1, 2, 3, 4])] * 2


def test_the_last_ones_are_kept_and_one_that_is_held(tmp_path):
    kept, memory = [], MemoryCheckpoint(2, tmp_path, keep=2)
    watches = LambdaCallback(
        on_train_batch_start=lambda *_: kept.append(list(memory.kept)),
        on_train_batch_end=lambda trainer, *_: (
            trainer.global_step in (3, 7) and memory.hold(trainer.global_step)
        ),
    )
    fit_alone(memory, watches, max_steps=13)
    assert kept == [
        *(
            [],
            [],
            [2],
            [2],
            [2, 4],
            [2, 4],
            [2, 4, 6],
            [2, 4, 6],
            [6, 8],
            [6, 8],
            [6, 8, 10],
            [6, 8, 10],
            [6, 10, 12],
        )
    ]
    assert memory.kept == []


def fit_and_go_back(folder, at=2, to=None, **options):
    memory = MemoryCheckpoint(folder=folder)

    def go_back(trainer, module, outputs, batch, batch_idx):
        if batch_idx + 1 == at:
            memory.go_back(trainer, to)

    fit_alone(memory, LambdaCallback(on_train_batch_end=go_back), max_steps=9, **options)


def test_what_was_asked_for_after_the_state_is_not_saved(tmp_path):
    class Asks(Callback):
        """Asks once for a checkpoint within an accumulation window."""

        def __init__(self, path, at):
            self.path, self.at = path, at

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.progress.total_batches == self.at:
                trainer.save_checkpoint(self.path)
                self.at = None

    memory = MemoryCheckpoint(folder=tmp_path, keep=2)
    back = Back(memory, 3, 2)
    fit_alone(
        Asks(tmp_path / "asked.ckpt", 5),
        back,
        memory,
        max_epochs=1,
        accumulate_grad_batches=2,
        batch_size=3,
    )
    assert back.starts == [0, 2]
    assert not (tmp_path / "asked.ckpt").exists()


def test_a_run_that_took_only_weights_goes_back_to_all(tmp_path):
    fit_alone(max_steps=2).save_checkpoint(tmp_path / "first.ckpt", weights_only=True)
    memory = MemoryCheckpoint(folder=tmp_path, keep=2)
    back = Back(memory, 4, 3)
    fit_alone(back, memory, max_steps=5, ckpt_path=tmp_path / "first.ckpt", resume="weights")
    assert back.starts == [0, 3]


def test_the_step_before_is_let_go_at_once(tmp_path):
    class Remembers(Back):
        """Knows, without holding it, what computed the loss before the run went back."""

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            compute = trainer.running_step.compute_loss
            if len(self.starts) == 1:
                self.compute = weakref.ref(compute)
            assert len(self.starts) == 1 or self.compute() is None

    memory = MemoryCheckpoint(folder=tmp_path)
    back = Remembers(memory, 3, 2)
    gc.disable()
    try:
        fit_alone(back, memory, max_steps=4)
    finally:
        gc.enable()
    assert back.starts == [0, 2]


def test_without_such_a_state_there_is_no_way_back(tmp_path):
    with pytest.raises(
        CheckpointNotFoundError,
        match=r"no state up to step 0: it has those after steps \[1\]\. Keep",
    ):
        fit_and_go_back(tmp_path, to=0)
    assert list(tmp_path.iterdir())  # it is still there


def test_within_a_window_there_is_no_way_back(tmp_path):
    with pytest.raises(ConfigurationError, match="within an accumulation window"):
        fit_and_go_back(tmp_path, at=3, accumulate_grad_batches=2)


@pytest.mark.parametrize(
    "change", [{"adds": Capability.OWNS_STEP}, {"lacks": Capability.BIT_EXACT_RESUME}]
)
def test_a_strategy_that_cant_go_back_says_so(tmp_path, change):
    class Engine(SingleDeviceStrategy):
        adds = lacks = Capability.NONE

        @property
        def capabilities(self):
            return (super().capabilities | self.adds) & ~self.lacks

    strategy = Engine()
    vars(strategy).update(change)
    with pytest.raises(
        UnsupportedError,
        match=r"^MemoryCheckpoint can't go back under Engine, which steps by itself",
    ):
        fit_and_go_back(tmp_path, strategy=strategy)


def test_outside_of_training_it_is_an_error(tmp_path):
    class Late(Callback):
        def on_fit_end(self, trainer, module):
            raise GoBack(tmp_path)

    with pytest.raises(GoBack):
        fit_alone(Late(), max_steps=1)


@pytest.mark.parametrize("keep", [0, True, 1.5])
def test_a_wrong_number_is_refused(keep):
    with pytest.raises(ConfigurationError, match="keep"):
        MemoryCheckpoint(keep=keep)
