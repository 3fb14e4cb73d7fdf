"""Two ranks, started in every way, and what is refused before work."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from core import Capability, ConfigurationError, LaunchError, Trainer
from core.strategies import HorovodStrategy
from core_horovod import HorovodLauncher
from core_testing import programs
from core_testing.waiting import slowness, wait_until

PROGRAM = Path(__file__).parent / "training_program.py"
PYTHON = [sys.executable, str(PROGRAM)]
HOROVODRUN = [
    *(
        sys.executable,
        "-m",
        "horovod.runner.launch",
        "--gloo",
        "--disable-cache",
        "--network-interfaces",
        "lo",
    ),
    *("-np", "2", "-H", "localhost:2", *PYTHON),
]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    str(PROGRAM),
]


def run(command, how, devices, folder):
    """The program's output; its weights are in the folder."""
    arguments = json.dumps([how, devices, str(folder), 2])
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = programs.run([*command, arguments], timeout=120, env=variables, forks_others=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(folder):
    return torch.load(folder / "weights")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run on one device."""
    folder = tmp_path_factory.mktemp("alone")
    assert "12 steps" in run(PYTHON, None, 1, folder)
    return folder


@pytest.mark.parametrize(
    ("command", "how"),
    [(HOROVODRUN, "horovod"), (PYTHON, "horovod"), (PYTHON, "subprocess"), (TORCHRUN, "horovod")],
    ids=["horovodrun", "runner", "subprocess", "torchrun"],
)
def test_equals_one_device_however_it_is_started(alone, tmp_path, command, how):
    assert "12 steps" in run(command, how, 2, tmp_path)
    torch.testing.assert_close(weights(tmp_path), weights(alone), rtol=1e-12, atol=1e-12)


def test_only_a_mean_over_ranks_takes_weighted_losses():
    assert Capability.WEIGHTED_LOSSES in HorovodStrategy().capabilities
    assert Capability.WEIGHTED_LOSSES not in HorovodStrategy(op="Sum").capabilities


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_main_process_that_is_ended_leaves_nobody(tmp_path, how):
    """The runner, its server and the ranks end with the process that has launched them."""

    def children_of(main):
        assert main.poll() is None
        return psutil.Process(main.pid).children(recursive=True)

    def _is_rank(process):
        try:
            # it trains, or is about to
            return "core_horovod.worker" in process.cmdline()[:3] and process.num_threads() > 2
        except psutil.Error:
            return False

    arguments = json.dumps(["horovod", 2, str(tmp_path), 100_000])
    # ranks are looked for by their commands, which a fork of this process's doesn't have
    main = programs.start([*PYTHON, arguments], forks_others=False)
    try:
        wait_until(lambda: sum(map(_is_rank, children_of(main))) == 2, "two ranks that train")
        everybody = children_of(main)
    finally:
        with suppress(ProcessLookupError):  # it has failed before
            os.kill(main.pid, how)
        try:
            main.wait(60 * slowness())
        except subprocess.TimeoutExpired:
            main.kill()
            raise
    _, alive = psutil.wait_procs(everybody, timeout=30 * slowness())
    assert not alive


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": "Adasum"}, r"op='Adasum': this build of Horovod has no MPI, and so no Adasum"),
        ({"op": "Mean"}, r"op='Mean': expected one of 'Average', 'Sum', 'Adasum'"),
        ({"compression": "bf16"}, r"compression='bf16': expected one of 'none', 'fp16'"),
        ({"backward_passes_per_step": 0}, r"backward_passes_per_step=0: at least 1"),
        ({"groups": 0}, r"groups=0: at least 1, or None"),
        (
            {"op": "Sum", "gradient_predivide_factor": 2.0},
            r"gradient_predivide_factor belongs to op='Average'",
        ),
        (
            {"start_method": "mpirun"},
            r"start_method='mpirun': expected one of 'horovod', 'subprocess'",
        ),
        (
            {"process_group_backend": "gloo"},
            r"no option 'process_group_backend'.*horovodrun --check-build",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        Trainer(strategy=HorovodStrategy(**options), accelerator="cpu", devices=2)


def test_bfloat16_is_refused_before_work():
    with pytest.raises(
        ConfigurationError, match=r"precision='bf16-true': Horovod has no operation on bfloat16"
    ):
        Trainer(strategy="horovod", accelerator="cpu", devices=2, precision="bf16-true")


def test_several_nodes_are_for_horovodrun():
    launcher = HorovodLauncher()
    launcher.connect(cluster_environment=None, num_processes=2, num_nodes=2)
    with pytest.raises(LaunchError, match=r"horovodrun -np 4 -H host1:2,host2:2 python train.py"):
        launcher.check()
