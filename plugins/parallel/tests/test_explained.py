"""The rows of `core explain` say what a run does: where stages are, what a rank keeps, and how much
it sends.
"""

from functools import cache

import pytest
import torch
from language import WIDTH, WORDS, MixtureNet, Net
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core import ConfigurationError, ModuleError
from core.cli import size_text
from core.contract import ExplainsLayout
from core.resolve import resolve
from core_parallel import MeshParallelStrategy
from core_parallel.context import attention
from core_testing.ranks import Backend

LENGTH, BATCH = 8, 4


class Piped(Net):
    """With parts, of which the first takes words and their places."""

    def __init__(self):
        super().__init__()
        del self.start
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.example_input_array = torch.zeros(BATCH, LENGTH, 2, dtype=torch.long)

    def pipeline(self):
        return [
            self.begin,
            self.embed,
            self.blocks[0],
            self.blocks[1],
            self.head,
            torch.clone,
        ]  # no view, of which FSDP2 warns

    def begin(self, x):
        return x[..., 0]

    def forward(self, x):
        for part in self.pipeline():
            x = part(x)
        return x


def explained(module, devices=2, precision=None, **options):
    """The choices of a strategy's rows, by what they are about; those with one subject are
    joined.
    """
    chosen = resolve(
        strategy=MeshParallelStrategy(**options),
        accelerator="cpu",
        devices=devices,
        precision=precision,
    ).strategy
    assert isinstance(chosen, ExplainsLayout)
    found = {}
    for what, choice, _ in chosen.explain_layout(module):
        found[what] = f"{found[what]} + {choice}" if what in found else choice
    return found


class Sent(TorchDispatchMode):
    """The bytes that a rank hands to torch.distributed in tensors, but for those of a few
    numbers.
    """

    def __init__(self):
        super().__init__()
        self.size_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        if func.namespace in ("c10d", "_c10d_functional") and not name.startswith(
            ("recv", "wait", "_wrap")
        ):
            given = args[1] if name in ("_allgather_base_", "_reduce_scatter_base_") else args[0]

            self.size_bytes += sum(
                one.nbytes
                for one in tree_leaves(given)
                if isinstance(one, Tensor) and one.nbytes > 32
            )
        return func(*args, **(kwargs or {}))


def loss_of(model, x):
    return functional.cross_entropy(model(x).flatten(0, 1), x[..., 0].flatten())


_AXES = {
    "data": {"data": 2},
    "shard": {"shard": 2},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2, "schedule": "GPipe"},
}


def sent_in_steps(rank):
    """The bytes that a rank sends in a step, by the axis along which."""
    found = {}
    for axis, options in _AXES.items():
        fabric, module = rank.fabric(MeshParallelStrategy(**options)), Piped()
        fabric.session.compares_ranks = False  # after the first steps, and then seldom
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        x = torch.randint(0, WORDS, (BATCH, LENGTH, 2))
        for _ in range(2):  # the first step also compares
            sent = Sent()
            with sent:
                optimizer.zero_grad()
                fabric.step(model, x.clone(), loss_of)
                optimizer.step()
        found[axis] = sent.size_bytes
        fabric.teardown()
    return found


@cache
def sent():
    """The bytes on each rank, of one group for all axes."""
    return Backend(MeshParallelStrategy, num_processes=2).run(sent_in_steps)


@pytest.mark.parametrize("axis", _AXES)
def test_a_rank_sends_as_much_as_is_explained(axis):
    text = explained(Piped(), **_AXES[axis])[f"sends over {axis}"]
    number, _, unit = text.partition(" a ")
    times = {"step": 1, "position": BATCH * LENGTH, "sample": BATCH}[unit]
    assert [size_text(of_rank[axis] / times) for of_rank in sent()] == [number, number]


def test_the_mesh_and_the_place_of_each_rank():
    found = explained(None, 8, pipeline=2, tensor=2)
    assert found["mesh"] == "pipeline=2, data=2, tensor=2"
    assert found["pipeline groups"] == "0 4, 1 5, 2 6, 3 7"
    assert found["tensor groups"] == "0 1, 2 3, 4 5, 6 7"
    assert found["rank 6"] == "pipeline=1, data=1, tensor=0"
    assert "stage 0" not in found
    many = explained(None, 1024, shard=512, expert=4)
    assert many["expert groups"].startswith("0 1 2 3, 4 5 6 7, 8 9 10 11, ...")
    assert [row for row in many if row.startswith("rank")] == [
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
        "rank 1023",
    ]


def test_stages_and_cut_layers():
    with torch.device("meta"):
        module = Piped()
    found = explained(module, 4, pipeline=2, tensor=2)
    assert found["stage 0"].startswith(
        f"{sum(map(torch.numel, parameters(module, 'embed', 'blocks.0'))):,} parameters"
    )
    assert found["cut layers"] == "8 by columns + 4 by rows"
    assert found["sends over tensor"] == "384 B a position"
    assert found["sends over pipeline"] == "512 B a sample"
    assert "balance" not in found
    assert explained(module, pipeline=2, balance="time")["balance"] == "parameters"
    small = explained(module, 4, "bf16-mixed", pipeline=2, tensor=2)
    assert small["sends over tensor"] == "up to 384 B a position"


def parameters(module, *names):
    return [one for name in names for one in module.get_submodule(name).parameters()]


def test_experts():
    with torch.device("meta"):
        module = MixtureNet()
    found = explained(module, 4, expert=2)
    assert found["experts"] == "2 of 4 a rank"
    assert found["sends over expert"] == "by the batch"
    assert "sends of experts" in found  # two copies of each
    with pytest.raises(ModuleError, match="has 4 experts, and expert=3 doesn't divide that"):
        explained(module, 3, expert=3)


def test_what_a_run_would_refuse():
    with pytest.raises(
        ConfigurationError,
        match="pipeline=2, data=1 and tensor=2 make 4 processes, and there are 2",
    ):
        explained(None, 2, pipeline=2, data=1, tensor=2)
    with pytest.raises(ModuleError, match="doesn't say what its parts are"):
        explained(nn.Linear(2, 2), pipeline=2)
    with pytest.raises(ModuleError, match="tensor=3 doesn't divide"):
        explained(Piped(), 3, tensor=3)


def test_the_mask_of_keys_in_a_dispatch_mode():
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    whole = functional.scaled_dot_product_attention(
        query, key, key, attention._causal(3, 5, query.device)
    )
    with Sent():
        found = functional.scaled_dot_product_attention(
            query, key, key, attention._causal(3, 5, query.device)
        )
    torch.testing.assert_close(found, whole)
