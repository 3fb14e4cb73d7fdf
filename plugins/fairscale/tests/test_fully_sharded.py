"""Refusals of `fsdp_fairscale`, and ddp's weights over a test double for CUDA's streams: see `streams_double.py`."""

import json
import os
import sys
from pathlib import Path

import pytest
import streams_double
import torch
from torch import nn

from core import ConfigurationError, Fabric, Trainer
from core_fairscale import FullyShardedFairScaleStrategy, refusals
from core_testing import Backend, programs

PROGRAM = Path(__file__).parent / "fully_sharded_program.py"


@pytest.mark.parametrize("host", [Fabric, Trainer])
def test_is_refused_without_cuda_and_says_what_to_use(host):
    with pytest.raises(ConfigurationError, match=r"this run is on 'cpu'.*Use strategy='fsdp'"):
        host(strategy="fsdp_fairscale", accelerator="cpu", devices=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flatten_parameters": True}, "one flat parameter in the place"),
        ({"mixed_precision": True}, "doesn't take mixed_precision=...: precision='bf16-mixed'"),
        ({"move_params_to_cpu": True}, "strategy='fsdp' has cpu_offload=True"),
        ({"min_num_params": 0}, "expected a number from 1"),
        ({"start_method": "thread"}, "start_method='thread': expected one of 'subprocess'"),
    ],
)
def test_options_that_are_decided_elsewhere_say_where(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FullyShardedFairScaleStrategy(**options)


def test_formats_that_fairscale_cant_cut_are_refused():
    strategy = FullyShardedFairScaleStrategy()
    with pytest.raises(ConfigurationError, match="Use '32-true' or 'bf16-mixed'"):
        strategy.configure_precision("16-mixed")
    with pytest.raises(ConfigurationError, match="'weight' of Linear is float64"):
        refusals.refuse_cut_module(nn.Linear(2, 2).double(), in_units=False)


def test_models_and_optimizers_that_would_train_wrongly_are_refused():
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    refusals.refuse_cut_module(tied, in_units=False)
    with pytest.raises(ConfigurationError, match="under two names"):
        refusals.refuse_cut_module(tied, in_units=True)
    with pytest.raises(ConfigurationError, match="LBFGS looks at whole tensors"):
        refusals.refuse_whole_tensors(torch.optim.LBFGS(tied.parameters()))


def run(folder, *arguments):
    command = [sys.executable, PROGRAM, *arguments]
    return programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=folder, timeout=280)


def gradients_of_two_backwards(rank):
    torch.manual_seed(0)
    fabric, layer = rank.fabric(), nn.Linear(2, 1)
    model, _ = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=1.0))
    states = [fabric.strategy.get_module_state_dict(layer)]
    inputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])[2 * rank.number :]
    for row in inputs[:2]:
        fabric.backward(model(row[None]).sum() * row[0])
    fabric.strategy.optimizer_step(fabric.strategy.optimizers[0])
    states.append(fabric.strategy.get_module_state_dict(layer))
    fabric.teardown()
    return {name: (states[0][name] - value).flatten().tolist() for name, value in states[1].items()}


@pytest.mark.parametrize(
    ("num_processes", "bias", "weight"),
    [(2, (1 + 3 + 5 + 7) / 2, [(1 + 9 + 25 + 49) / 2, (2 + 12 + 30 + 56) / 2]), (1, 1 + 3, [1 + 9, 2 + 12])],
)
def test_gradients_add_up_also_of_parameters_of_one_element(num_processes, bias, weight):
    """The bias has one element, and its part on rank 0 of 2 the shape of the whole; one rank has all whole."""
    streams_double.register()
    ranks = Backend(lambda: "fsdp_on_a_double", num_processes=num_processes, timeout_s=100)
    found = ranks.run(gradients_of_two_backwards)[0]
    assert found["bias"] == pytest.approx([bias], rel=1e-6)
    assert found["weight"] == pytest.approx(weight, rel=1e-6)


@pytest.mark.slow
def test_trains_as_ddp_and_goes_on_from_it_on_a_double(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["fsdp_on_a_double"], found["fsdp_in_units_on_a_double"], found["evaluated"]) < 2e-6
    assert len(found["resumed"]) == 3
    assert max(found["resumed"].values()) < 2e-6
    parts, whole, names = found["kept"]
    assert max(parts) < 0.6 * whole
    assert names[:2] == ["0.weight", "0.bias"]
    assert "no parameter of one unit of FairScale's" in found["refused"]


@pytest.mark.slow
def test_what_a_loss_leaves_out_on_a_rank_is_named_on_a_double(tmp_path):
    done = run(tmp_path, "left_out")
    assert done.returncode != 0
    assert "does not depend on 'net.2.0.weight'" in done.stderr
