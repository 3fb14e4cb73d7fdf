"""The rows of `core explain` say what a run does: where ranks are, and what they have."""

import pytest
import torch
from language import WIDTH, WORDS, MixtureNet, Net
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from core import ConfigurationError, ModuleError
from core.contract import ExplainsLayout
from core.resolve import resolve
from core_parallel import MeshParallelStrategy
from core_parallel.context import attention


class Piped(Net):
    """With parts, of which the first takes words and their places."""

    def __init__(self):
        super().__init__()
        del self.start
        self.embed = nn.Embedding(WORDS, WIDTH)

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


def explained(module, devices=2, **options):
    """The choices of a strategy's rows, by what they are about; those with one subject are
    joined.
    """
    chosen = resolve(
        strategy=MeshParallelStrategy(**options),
        accelerator="cpu",
        devices=devices,
    ).strategy
    assert isinstance(chosen, ExplainsLayout)
    found = {}
    for what, choice, _ in chosen.explain_layout(module):
        found[what] = f"{found[what]} + {choice}" if what in found else choice
    return found


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
    assert "balance" not in found
    assert explained(module, pipeline=2, balance="time")["balance"] == "parameters"


def parameters(module, *names):
    return [one for name in names for one in module.get_submodule(name).parameters()]


def test_experts():
    with torch.device("meta"):
        module = MixtureNet()
    found = explained(module, 4, expert=2)
    assert found["experts"] == "2 of 4 a rank"
    with pytest.raises(ModuleError, match="has 4 experts, and expert=3 doesn't divide that"):
        explained(module, 3, expert=3)


def test_what_a_run_would_refuse():
    with pytest.raises(
        ConfigurationError,
        match="context=1, tensor=2 are 4 processes, and there are 2",
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
    with FlopCounterMode(display=False):
        found = functional.scaled_dot_product_attention(
            query, key, key, attention._causal(3, 5, query.device)
        )
    torch.testing.assert_close(found, whole)
