"""Fabric in two real processes."""

import json
import os
import sys
import textwrap
from itertools import chain

import pytest
from torch import nn

from core import Fabric, LaunchError
from core_testing import programs

HEADER = """
import json, numpy, os, random, time, warnings
warnings.simplefilter("error", UserWarning)
import torch
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(os.getpid())  # ranks that nobody seeds
from torch import nn
from torch.utils.data import DataLoader
from core import CoreError, Fabric

def tell(**values):
    os.write(1, (json.dumps(values) + "\\n").encode())  # in one piece, whatever the other rank does
"""


@pytest.fixture
def run(tmp_path):
    """Run a program; returns what its ranks told, by rank."""

    def run(body, *, command=(sys.executable,), code=0, expect=2):
        script = tmp_path / "program.py"
        script.write_text(HEADER + textwrap.dedent(body))
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = programs.run([*command, script], cwd=tmp_path, env=environment, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        assert "destroy_process_group" not in done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(told) == expect, done.stdout + done.stderr
        return sorted(told, key=lambda values: values.get("rank", 0))

    return run


TWO_FORKS = """
def train(fabric):
{}

Fabric(accelerator="cpu", strategy="ddp_fork", devices=2).launch(train)
"""


def on_two_forks(body):
    """A program that runs this on two ranks, where a script that launches itself isn't the
    point.
    """
    return TWO_FORKS.format(textwrap.indent(textwrap.dedent(body), "    "))


COLLECTIVES = """
fabric.barrier()
tell(
    drawn=[random.random(), numpy.random.rand(), torch.rand(()).item()],
    rank=fabric.global_rank,
    world=fabric.world_size,
    local=fabric.local_rank,
    mean=fabric.all_reduce([float(fabric.global_rank)])[0].item(),
    seed=fabric.seed_everything(4, per_rank=True),
)
fabric.print("{}")
"""


def check_collectives(told):
    told = [values for values in told if values]
    assert told[0]["drawn"] == told[1]["drawn"]
    assert [values["rank"] for values in told] == [0, 1] == [values["local"] for values in told]
    assert [(values["world"], values["mean"], values["seed"]) for values in told] == [
        (2, 0.5, 4),
        (2, 0.5, 5),
    ]


def test_a_script_that_launches_itself(run):
    body = "fabric = Fabric(accelerator='cpu', strategy='ddp', devices=2)\nfabric.launch()\n"
    check_collectives(run(body + COLLECTIVES, expect=3))


def test_the_same_script_under_torchrun(run):
    command = [*programs.TORCHRUN, "--nproc-per-node", "2", "--master-port", "0", "--standalone"]
    body = "fabric = Fabric(accelerator='cpu', strategy='ddp', devices=2)\n"
    check_collectives(run(body + COLLECTIVES, command=command, expect=3))


@pytest.mark.slow
def test_spawned_processes_get_a_function_and_return_rank_zeros_result(run):
    told = run(
        """
        def train(fabric, start, *, by):
            drawn = [random.random(), numpy.random.rand(), torch.rand(()).item()]
            module = nn.Linear(1, 1, bias=False)
            nn.init.constant_(module.weight, start)
            model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1.0))
            x = torch.tensor([[float(fabric.global_rank)]])
            fabric.backward(model(x).sum() * by)
            optimizer.step()
            tell(rank=fabric.global_rank, weight=module.weight.item(), drawn=drawn)
            return {"rank": fabric.global_rank, "model": model}

        if __name__ == "__main__":
            fabric = Fabric(accelerator="cpu", strategy="ddp_spawn", devices=2)
            for _ in range(2):
                result = fabric.launch(train, 3.0, by=2.0)
                tell(rank=2, result=[result["rank"], type(result["model"]).__name__, result["model"].weight.item()])
        """,
        expect=6,
    )
    assert [values["weight"] for values in told[:4]] == [2.0] * 4
    assert sorted(values["drawn"] for values in told[:2]) == sorted(
        values["drawn"] for values in told[2:4]
    )
    assert [values["result"] for values in told[4:]] == [[0, "Linear", 2.0]] * 2


def test_two_ranks_share_the_order_of_one_device(run):
    def steps(first, second):
        return [here + there for here, there in zip(first, second, strict=True)]

    loaders = """
def batches(loader):
    return [batch.tolist() for batch in loader]

def make(**options):
    torch.rand(fabric.global_rank)  # ranks whose generators stand apart
    return fabric.setup_dataloaders(DataLoader(range(11), batch_size=4 // fabric.world_size, **options))

torch.manual_seed(1)
shuffled = make(shuffle=True)
tell(
    rank=fabric.global_rank,
    sequential=batches(make()),
    epochs=[batches(shuffled), batches(shuffled)],
    workers=batches(make(num_workers=1, shuffle=True)),
)
"""
    (alone,) = run("fabric = Fabric(accelerator='cpu')\n" + loaders, expect=1)
    first, second = run(on_two_forks(loaders))
    assert first["sequential"] == [[0, 1], [4, 5], [8, 9]]
    assert second["sequential"] == [[2, 3], [6, 7], [10]]
    for here, there, together in zip(
        first["epochs"], second["epochs"], alone["epochs"], strict=True
    ):
        assert steps(here, there) == together
        assert sorted(chain(*together)) == list(range(11))
    assert steps(first["workers"], second["workers"]) == alone["workers"]


def test_no_rank_is_done_before_all_have_joined(run):
    """A rank that left the group sooner would close connections that others still make."""
    body = """
    from pathlib import Path
    import torch.distributed as dist

    init = dist.init_process_group

    def slow_init(*args, **kwargs):
        init(*args, **kwargs)
        if kwargs["rank"] == 1:
            time.sleep(0.5)
            Path("joined").touch()

    dist.init_process_group = slow_init

    def train(fabric):
        tell(rank=fabric.global_rank, joined=Path("joined").exists())

    Fabric(accelerator="cpu", strategy="ddp_fork", devices=2).launch(train)
    """
    assert [rank["joined"] for rank in run(body)] == [True, True]


def test_rank_zero_goes_first(run):
    told = run(
        on_two_forks("""
        with fabric.rank_zero_first(local=True):
            if fabric.is_global_zero:
                time.sleep(0.2)
            was_there = os.path.exists("prepared")
            open("prepared", "w").close()
        tell(rank=fabric.global_rank, was_there=was_there)
        """)
    )
    assert [values["was_there"] for values in told] == [False, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda fabric: fabric.setup(nn.Linear(1, 1)),
        lambda fabric: fabric.setup_dataloaders([1]),
        lambda fabric: fabric.all_reduce(1.0),
        lambda fabric: fabric.init_module(),
        lambda fabric: fabric.barrier(),
    ],
)
@pytest.mark.parametrize(
    ("strategy", "told"), [("ddp_spawn", "fabric.launch(train)"), ("ddp", "fabric.launch()")]
)
def test_processes_must_be_launched_first(call, strategy, told):
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=2)
    with pytest.raises(LaunchError) as raised:
        call(fabric)
    assert (
        str(raised.value)
        == f"DDPStrategy runs in 2 processes, and they don't exist yet. Call {told} first."
    )


def test_spawning_needs_a_function():
    fabric = Fabric(accelerator="cpu", strategy="ddp_spawn", devices=2)
    with pytest.raises(
        LaunchError, match=r"use fabric.launch\(train\), where train\(fabric\) holds your loop"
    ):
        fabric.launch()


def test_tensors_arrive_as_they_were_and_without_pickling(run):
    body = """
    import torch.distributed as dist

    kinds = (torch.float16, torch.bfloat16, torch.int16, torch.bool, torch.complex64)
    mine = fabric.global_rank
    sent = [torch.arange(6).reshape(2, 3).to(kind).t() for kind in kinds]
    sent += [torch.tensor(2.5), torch.ones(0, 4), torch.tensor([1 + 2j]).conj(), torch.eye(2).to_sparse().coalesce()]
    pickled, real = [], dist.broadcast_object_list

    def shown(box, *arguments, **options):
        pickled.append(isinstance(box[0][1], torch.Tensor))
        return real(box, *arguments, **options)

    dist.broadcast_object_list = shown
    got = [fabric.broadcast(tensor if mine == 1 else None, src=1) for tensor in sent]
    dist.broadcast_object_list = real
    same = [a.dtype == b.dtype and a.shape == b.shape and bool((a.to_dense() == b.to_dense()).all())
            for a, b in zip(got, sent)]
    large = torch.tensor([60000.0, 1.0], dtype=torch.float16)
    gathered = [fabric.all_gather(each) for each in (torch.tensor(mine), torch.full((2, 3), mine).t())]
    tell(
        rank=mine, same=same, pickled=pickled, mean=fabric.all_reduce(large).tolist(),
        dtype=str(fabric.all_reduce(large).dtype), scalars=gathered[0].tolist(), shape=list(gathered[1].shape),
        parts=[part.unique().tolist() for part in gathered[1]],
    )
    """
    for rank, told in enumerate(run(on_two_forks(body))):
        assert told == {
            "rank": rank,
            "same": [True] * 9,
            "pickled": [False] * 8 + [rank == 1],
            "mean": [60000.0, 1.0],
            "dtype": "torch.float16",
            "scalars": [0, 1],
            "shape": [2, 3, 2],
            "parts": [[0], [1]],
        }
