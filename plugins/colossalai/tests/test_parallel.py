"""Gemini and hybrid parallelism as far as Colossal-AI's own code runs without a GPU."""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from core import ConfigurationError, Fabric
from core.strategies import ColossalAIStrategy
from core_colossalai import engine, library, refusals
from core_testing import programs

PROGRAM = Path(__file__).with_name("parallel_program.py")
SEQUENCES = {"enable_sequence_parallelism": True}


class Placed(ColossalAIStrategy):
    """One rank of a world of eight."""

    world_size, global_rank, root_device = 8, 0, torch.device("cpu")

    def check_device(self, device_type):
        pass


@contextmanager
def one_of_eight(rank):
    dist.init_process_group("fake", rank=rank, world_size=8, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("plugin", "given"),
    [
        ("hybrid_parallel", {"tp_size": 2}),
        ("hybrid_parallel", {"tp_size": 2, "sp_size": 2, **SEQUENCES}),
        (
            "hybrid_parallel",
            {"tp_size": 2, "sp_size": 2, **SEQUENCES, "sequence_parallelism_mode": "all_to_all"},
        ),
        (
            "hybrid_parallel",
            {"tp_size": 2, "sp_size": 2, **SEQUENCES, "sequence_parallelism_mode": "ring_attn"},
        ),
        (
            "hybrid_parallel",
            {"tp_size": 2, **SEQUENCES, "sequence_parallelism_mode": "split_gather"},
        ),
        (
            "hybrid_parallel",
            {"tp_size": 4, "sp_size": 4, **SEQUENCES, "sequence_parallelism_mode": "ring"},
        ),
        ("gemini", {"tp_size": 2, "extra_dp_size": 2}),
        ("gemini", {}),
    ],
)
def test_data_is_dealt_to_colossalais_replicas(plugin, given, monkeypatch):
    """The shares are those that its own plugin makes of so many ranks; and a mode is the same to
    all of its parts.
    """
    library.load("colossalai.accelerator").set_accelerator("cpu")
    strategy = Placed(plugin, precision="bf16", **given)
    refusals.refuse_sizes(plugin, strategy.options, 8)
    axes = {"hybrid_parallel": (0,), "gemini": (0, 1)}[plugin]
    for rank in range(8):
        monkeypatch.setattr(Placed, "global_rank", rank)
        with one_of_eight(rank):
            theirs = strategy._make_booster(**strategy._settings()).plugin
            sizes = [theirs.pg_mesh.size(axis) for axis in axes]
            place = 0
            for axis, size in zip(axes, sizes, strict=True):
                place = place * size + theirs.pg_mesh.coordinate(axis)
            assert (strategy.data_parallel_size, strategy.data_parallel_rank) == (
                torch.tensor(sizes).prod(),
                place,
            )
            if plugin == "hybrid_parallel" and "enable_sequence_parallelism" in given:
                assert (
                    theirs.shard_config.sequence_parallelism_mode
                    == theirs.sequence_parallelism_mode
                )
            del theirs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tp_size": 2, "sp_size": 4},
            r"sp_size=4 has no effect with sequence_parallelism_mode='ring'.*tp_size=2 ranks",
        ),
        (
            {},
            r"sequence_parallelism_mode='ring' shares a sequence between the ranks that share a "
            r"layer",
        ),
    ],
)
def test_sizes_that_colossalai_would_ignore_are_refused(given, message):
    strategy = ColossalAIStrategy(
        "hybrid_parallel", **SEQUENCES, sequence_parallelism_mode="ring", **given
    )
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse_sizes("hybrid_parallel", strategy.options, 8)


def small_gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2))


def test_gemini_takes_its_own_optimizers_only():
    """By their class: even one of its own that is derived from."""
    known = library.gemini_optimizers()
    assert {kind.__name__ for kind in known} == {"HybridAdam", "FusedAdam", "CPUAdam"}
    module = nn.Linear(2, 2)
    hint = (
        r"plugin='gemini' steps CPUAdam, FusedAdam, HybridAdam .* this is a AdamW.*import "
        r"HybridAdam"
    )
    with pytest.raises(ConfigurationError, match=hint):
        refusals.refuse_gemini_optimizer(torch.optim.AdamW(module.parameters()), known)
    own = next(iter(known))
    refusals.refuse_gemini_optimizer(own.__new__(own), known)
    derived = type("Derived", (own,), {})
    with pytest.raises(ConfigurationError, match="this is a Derived"):
        refusals.refuse_gemini_optimizer(derived.__new__(derived), known)


def test_models_that_shardformer_does_not_know_are_refused():
    policies = library.load("colossalai.shardformer.policies.auto_policy")
    refusals.refuse_unknown_model(small_gpt2(), policies)
    with pytest.raises(
        ConfigurationError,
        match=r"no policy for torch.nn.modules.container.Sequential.*custom_policy",
    ):
        refusals.refuse_unknown_model(nn.Sequential(small_gpt2()), policies)


@pytest.mark.parametrize(
    ("plugin", "module", "message"),
    [
        ("gemini", small_gpt2, r"plugin='gemini' steps CPUAdam, FusedAdam, HybridAdam"),
        (
            "hybrid_parallel",
            lambda: nn.Linear(2, 2),
            r"Shardformer has no policy for torch.nn.modules.linear.Linear",
        ),
    ],
)
def test_what_colossalai_would_refuse_in_the_middle_is_refused_before(plugin, module, message):
    fabric = Fabric(strategy=OnTheCPU(plugin, precision="bf16"), accelerator="cpu", devices=1)
    fabric.launch()
    made = module()
    with pytest.raises(ConfigurationError, match=message):
        fabric.setup(made, torch.optim.AdamW(made.parameters()))
    fabric.teardown()


class OnTheCPU(ColossalAIStrategy):
    """Refuses no device, and keeps what would be boosted."""

    def check_device(self, device_type):
        pass

    def module_to_device(self, module):
        raise AssertionError("the whole model went to the device")


@pytest.mark.parametrize(
    ("plugin", "given", "routes"),
    [("gemini", {}, True), ("gemini", {"tp_size": 1}, True), ("hybrid_parallel", {}, False)],
)
def test_a_model_goes_to_the_device_in_colossalais_hands_only(plugin, given, routes, monkeypatch):
    """It is given as it was built; Gemini takes each parameter to its chunk
    (`GeminiDDP._init_chunks`).
    """
    boosted = []

    class Boosted:
        def __init__(self, optimizer):
            self.unwrap, self.zero_grad = (lambda: optimizer), optimizer.zero_grad

    def boost(booster, module, optimizer):
        boosted.append(module)
        return module, Boosted(optimizer)

    monkeypatch.setattr(engine.library, "boost", boost)
    monkeypatch.setattr(library, "booster", lambda *args: None)
    monkeypatch.setattr(library, "gemini_optimizers", lambda: {torch.optim.AdamW})
    fabric = Fabric(
        strategy=OnTheCPU(plugin, precision="bf16", **given), accelerator="cpu", devices=1
    )
    fabric.launch()
    with fabric.init_module():
        model = small_gpt2()
    fabric.setup(model, torch.optim.AdamW(model.parameters()))
    (given_to_booster,) = boosted
    assert (given_to_booster is not model) == routes
    fabric.teardown()


def test_layers_of_gemini_are_shared_by_the_models_class():
    """Shardformer is given the user's model itself, and a Trainer can't call its steps."""
    strategy = Placed("gemini", tp_size=2, precision="bf16")
    assert strategy.calls_forward
    assert not Placed("gemini", precision="bf16").calls_forward
    with pytest.raises(
        ConfigurationError, match=r"plugin='gemini' with tp_size=2 calls a model's forward"
    ):
        strategy.setup(type("Host", (), {"clipping": None}))


def test_ranks_have_the_same_lazy_values(tmp_path):
    """Of parameters that get values one after the other, as a plugin asks for them."""
    done = programs.run(
        [sys.executable, PROGRAM],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["before"] == [["LazyTensor", True]] * 2
    for values in (found["after"], found["built"]):
        assert values[0] == values[1]
        assert 0 < torch.tensor(values[0][0]).abs().max() < 1
