"""On simulated devices, in lazy and in eager mode; collected in a process of its own, by
`test_simulated.py`.
"""

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from simulated_gaudi import graph

from core import Callback, ConfigurationError, Fabric, Trainer
from core_hpu import HPUParallelStrategy
from core_testing.cases import ADAMW, Case
from core_testing.networks import Perceptron, make_loader
from core_testing.ranks import Backend
from core_testing.training import assert_equal_runs, train

CASE = Case("hpu", optimizer=ADAMW, scheduler="step", shuffle=True, dtype=torch.float32)
CPU = Backend(lambda: "single_device", "cpu", kept_for="cpu")
SINGLE = Backend(lambda: "hpu_single", "hpu", kept_for="hpu_single")
PARALLEL = Backend(lambda: "hpu_parallel", "hpu", 2, 2, kept_for="hpu_parallel")


@pytest.mark.parametrize("backend", [SINGLE, PARALLEL], ids=["hpu_single", "hpu_parallel"])
def test_twenty_steps_equal_those_of_one_cpu(backend):
    num_steps = 20

    def long_run(rank):
        return train(rank, CASE, max_epochs=4, max_steps=num_steps)

    (expected,) = CPU.run(long_run)
    assert expected.num_steps == num_steps
    assert_equal_runs(backend.run(long_run)[0], expected, tolerance=1e-5)


class Launches(Callback):
    """Notes what each training batch has launched, and what still waits after it."""

    def __init__(self):
        self.by_batch, self.waiting = [], []

    def on_train_batch_start(self, *_):
        self.before = len(graph.launches)

    def on_train_batch_end(self, *_):
        self.by_batch.append(graph.launches[self.before :])
        self.waiting.append(graph.num_pending())


def observe(rank):
    launches = Launches()
    loader = make_loader(CASE, rank.backend.data_parallel_size)
    rank.trainer(callbacks=launches, max_epochs=1).fit(Perceptron(CASE), loader)
    return launches


def assert_launched(launches):
    """Two graphs a batch, which the library was told to launch; after the second batch none is
    compiled.
    """
    assert launches.waiting == [0] * len(launches.waiting)
    for batch in launches.by_batch:
        assert [each.reason for each in batch if each.reason != "value"] == ["mark_step"] * 2
    assert not any(each.was_compiled for batch in launches.by_batch[2:] for each in batch)


@pytest.mark.skipif(not graph.IS_LAZY, reason="in eager mode nothing waits")
class TestLazyMode:
    def test_each_step_launches_two_graphs_and_reads_nothing(self):
        (found,) = SINGLE.run(observe)
        assert_launched(found)
        assert all(len(batch) == 2 for batch in found.by_batch), (
            "nothing else made the device compute"
        )

    def test_each_step_over_hccl_launches_two_graphs_after_its_gradients(self):
        for found in PARALLEL.run(observe):
            assert_launched(found)

    def test_a_step_of_an_evaluation_launches_its_graph(self):
        def evaluate(rank):
            waiting = []

            class Net(Perceptron):
                def validation_step(self, batch, batch_idx):
                    self(batch[0])

                def on_validation_batch_end(self, *_):
                    waiting.append(graph.num_pending())

            rank.trainer(limit_val_batches=3).validate(
                Net(CASE), make_loader(replace(CASE, shuffle=False), 1)
            )
            return waiting

        (found,) = SINGLE.run(evaluate)
        assert found == [0, 0, 0]


def test_memory_is_told():
    def allocate(rank):
        strategy = rank.fabric().strategy
        device, stats = strategy.root_device, strategy.accelerator.memory_stats
        before = stats(device)
        held = torch.zeros(1000, device=device)
        strategy.accelerator.synchronize(device)
        return before, stats(device), held.nbytes

    before, after, unit = SINGLE.run(allocate)[0]
    assert after["allocated_bytes"] - before["allocated_bytes"] == unit
    assert after["peak_allocated_bytes"] >= after["allocated_bytes"] > 0
    assert after["limit_bytes"] > after["peak_allocated_bytes"]


def test_what_hccl_cannot_reduce_is_gathered():
    def reduce(rank):
        fabric = rank.fabric()
        fabric.barrier()
        strategy, device = fabric.strategy, fabric.device
        own = torch.tensor([0.0, 1.0], device=device) + rank.number
        try:
            dist.all_reduce(own.clone(), op=dist.ReduceOp.PRODUCT)
        except RuntimeError as error:
            refused = str(error)
        return {
            "product": strategy.reduce(own, reduce_op="product").tolist(),
            "double": strategy.reduce(own.double()).tolist(),
            "on the host": int(strategy.reduce(torch.tensor(rank.number), reduce_op="sum")),
            "objects": strategy.gather_objects(f"rank {rank.number}", dst=1),
            "refused": refused,
        }

    for number, found in enumerate(PARALLEL.run(reduce)):
        assert found["product"] == [0.0, 2.0]
        assert found["double"] == [0.5, 1.5]
        assert found["on the host"] == 1
        assert found["objects"] == (None if number == 0 else ["rank 0", "rank 1"])
        assert "Unsupported ReduceOp" in found["refused"], "the group itself refuses"


def test_others_than_the_first_devices_are_shown_to_the_library():
    def choose_the_second(rank):
        fabric = Fabric(accelerator="hpu", devices=[1], strategy="hpu_single")
        fabric.launch()
        inside = os.environ.get("HABANA_VISIBLE_MODULES")
        fabric.teardown()
        return [inside, os.environ.get("HABANA_VISIBLE_MODULES")]

    assert SINGLE.run(choose_the_second) == [["1", None]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "ddp_spawn", "accelerator": "hpu"}, "Use strategy='hpu_parallel'"),
        ({"strategy": "hpu_single", "accelerator": "cpu"}, "Pass accelerator='hpu'"),
        (
            {"strategy": HPUParallelStrategy(process_group_backend="gloo"), "devices": 2},
            "or use 'hccl'",
        ),
    ],
    ids=["a preset of ddp", "another device", "another process group"],
)
def test_a_wrong_choice_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Trainer(**options)
