"""core-fairscale beyond the kit: ddp's weights, whatever a loop calls; refusals; FairScale's faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from core import ConfigurationError, Fabric
from core_fairscale import DDPShardedStrategy
from core_testing import programs
from support.checkout import KITS

HERE = Path(__file__).parent
ON_CPU = {"accelerator": "cpu", "devices": 2}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of `sharded_program.py` in two processes."""
    command = [sys.executable, HERE / "sharded_program.py"]
    folder, variables = tmp_path_factory.mktemp("run"), os.environ | {"OMP_NUM_THREADS": "1"}
    done = programs.run(command, env=variables, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("zeroing", ["with_none", "with_zeros", "by_the_model", "by_hand"])
def test_weights_are_those_of_ddp_however_gradients_are_zeroed(found, zeroing):
    assert found[zeroing] == 0


@pytest.mark.parametrize("loop", ["in eval()", "accumulated", "unused on a rank"])
def test_weights_are_those_of_ddp(found, loop):
    assert found[loop] == 0


@pytest.mark.parametrize("loop", ["every_second", "clipped"])
def test_weights_are_those_of_ddp_but_for_the_order_of_sums(found, loop):
    assert found[loop] < 1e-9


def test_gradients_that_one_rank_lacks_are_named(found):
    assert "the loss depends on 'first.bias', 'first.weight', and on others it doesn't" in found["refused"]
    assert "ddp_sharded_find_unused_parameters_true" in found["refused"]


def test_modules_that_differ_are_refused(found):
    assert "'bias': (1,) float32 on rank 0; (2,) float32 on rank 1" in found["unlike"]


def test_each_rank_keeps_a_part_of_the_optimizer(found):
    parts, whole = found["owned"]
    assert sum(parts) == whole
    assert min(parts) > 0


def test_checkpoints_go_on_under_ddp_and_come_from_it(found):
    assert len(found["resumed"]) == 3
    assert set(found["resumed"].values()) == {0}


@pytest.mark.parametrize(
    ("module", "optimizer", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), torch.optim.SGD, "'0.bias' is float32"),
        (lambda: nn.Linear(2, 2), torch.optim.LBFGS, "LBFGS needs all parameters in one place"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), torch.optim.SGD, "complex"),
    ],
)
def test_what_fairscale_would_train_wrongly_is_refused(module, optimizer, message):
    from core_fairscale import refusals

    made = module()
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse(made, [optimizer(made.parameters(), lr=0.1)])


def test_options_that_train_wrongly_are_refused_before_work():
    with pytest.raises(ConfigurationError, match="buckets lose gradients"):
        DDPShardedStrategy(reduce_buffer_size=2**23)
    with pytest.raises(ConfigurationError, match="start_method='thread': expected one of 'subprocess'"):
        DDPShardedStrategy(start_method="thread")
    with pytest.raises(ConfigurationError, match="keeps each gradient on one rank"):
        Fabric(strategy="ddp_sharded", precision="16-mixed", **ON_CPU)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigurationError, match=r"pip install fairscale==0\.4\.13"):
        Fabric(strategy="ddp_sharded", **ON_CPU)


@pytest.mark.slow
def test_the_kit_fails_a_strategy_with_fairscales_buckets(tmp_path):
    """Its losses fall and its ranks agree; only a comparison with one device sees it."""
    suite = f"{HERE / 'bucketed_kit.py'}::TestBucketed::test_training_equals_one_device"
    command = [*programs.PYTEST, "-q", "-p", "no:cacheprovider", "-c", KITS, f"{suite}[fabric]"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout
