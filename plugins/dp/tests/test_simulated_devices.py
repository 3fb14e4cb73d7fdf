"""core-dp on devices that are simulated, in processes of their own: torch's own DataParallel, with
its threads.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import replicated_training
import torch
import torch.utils.backend_registration

from core.cluster import reserve_port
from core_testing import programs
from support.checkout import KITS

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch can't have a device in Python",
)
HERE = Path(__file__).parent


def start(alias, **variables):
    command = [sys.executable, "-W", "error", HERE / "replicated_training.py", alias]
    return programs.start(command, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)


def result_of(program):
    output, errors = program.communicate(120)
    assert program.returncode == 0, output + errors
    return json.loads(output)


def train_on_one_device():
    return replicated_training.train(strategy="single_device", accelerator="cpu")


def assert_equal(found, expected):
    """Within what float32 loses when devices' shares of a sum come in another order."""
    for name, value in expected.items():
        both = (torch.tensor(each, dtype=torch.float64) for each in (found[name], value))
        torch.testing.assert_close(
            *both, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
def test_dp_on_two_devices_equals_one():
    """Weights, what steps log and metrics make of two threads, and a forward; torch warns of
    nothing.
    """
    found, expected = result_of(start("dp")), train_on_one_device()
    assert {tuple(shape) for shape in found["shapes"]} == {(4, 3)}, (
        "each device gets a half of eight samples"
    )
    assert len(found["threads"]) > 1
    assert_equal(found["weights"], expected["weights"])
    assert_equal(found["logged"], expected["logged"])
    assert_equal(
        found, {"outputs": replicated_training.outputs(strategy="single_device", accelerator="cpu")}
    )


@pytest.mark.slow
def test_ddp2_on_two_nodes_with_two_devices_each_equals_one_device():
    """Real DistributedDataParallel over gloo, around real DataParallel."""

    def two_nodes():
        """The variables of two processes, each on a node of its own."""
        port = str(reserve_port(two_nodes))
        job = {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RUN_ID": "a-job",
        }
        job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [job | {"RANK": rank, "GROUP_RANK": rank} for rank in "01"]

    found = [
        result_of(program) for program in [start("ddp2", **variables) for variables in two_nodes()]
    ]
    expected = train_on_one_device()
    for rank in found:
        assert {tuple(shape) for shape in rank["shapes"]} == {(2, 3)}, (
            "each of four devices gets a quarter"
        )
        assert_equal(rank["weights"], expected["weights"])
        assert_equal(rank["logged"], expected["logged"])


@pytest.mark.slow
def test_dp_passes_the_kit_on_two_devices(tmp_path):
    """But for what several devices of one process can't do, which `simulated_kit.py` lists with
    reasons.
    """
    quiet = ("-W", "ignore:PyTorch is not compiled with NCCL")
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = programs.run(
        [
            *programs.PYTEST,
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            KITS,
            *quiet,
            HERE / "simulated_kit.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 70
