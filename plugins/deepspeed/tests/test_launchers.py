"""The same training, whoever starts its processes: DeepSpeed's launcher, torchrun, and
schedulers.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.cluster import reserve_port
from core_testing import programs
from core_testing.waiting import slowness, wait_until
from support.checkout import in_checkout

HERE = Path(__file__).parent
PROGRAM = HERE / "launched_program.py"
TRAINED_UNTIL_INTERRUPTED = in_checkout("plugins/training/tests/signals/interruption_program.py")
DEEPSPEED = (sys.executable, Path(sys.executable).with_name("deepspeed"))
PRELOAD = f"{programs.PRELOAD},deepspeed"
STAGE_3 = {"strategy": "deepspeed_stage_3"}


def free_port():
    return reserve_port(free_port)


def run_all(*commands, **variables):
    """Run commands side by side to their ends; the exit code and output of each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    started = [start([*map(str, one)], environment) for one in commands]
    outputs = [process.communicate(timeout=240 * slowness())[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def start(command, environment):
    """Start what is written in Python in a fork of a process that has imported DeepSpeed; and so
    its ranks.
    """
    if command[0] == sys.executable:
        return programs.start(command, env=environment, merge_errors=True, preload=PRELOAD)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


@pytest.fixture(scope="module")
def expected_losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_device")
    one_device = json.dumps({"strategy": "single_device", "devices": 1})
    ((code, output),) = run_all((sys.executable, PROGRAM, folder, one_device))
    assert code == 0, output
    return json.loads((folder / "rank-0").read_text())["losses"]


@pytest.fixture
def assert_trains(tmp_path, expected_losses):
    """Train under each node's launcher, and compare places and losses; gives the arguments beside
    the test's own.
    """

    def check(*launchers, places, environment, arguments=STAGE_3, **variables):
        script = (PROGRAM, tmp_path, json.dumps(arguments))
        ends = run_all(*[(*launcher, *script) for launcher in launchers], **variables)
        assert all(code == 0 for code, _ in ends), ends
        ranks = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)]
        assert [(rank["node_rank"], rank["local_rank"]) for rank in ranks] == places
        for rank in ranks:
            assert (rank["environment"], rank["world_size"]) == (environment, 2)
            assert rank["losses"] == pytest.approx(expected_losses, rel=1e-5)
        return [rank["further"] for rank in ranks]

    return check


def deepspeed(*options):
    return (*DEEPSPEED, "--master_port", free_port(), *options)


def test_the_deepspeed_launcher(assert_trains):
    """The script gets an argument that it hasn't asked for; with `--no_local_rank` it doesn't."""
    further = assert_trains(
        deepspeed("--num_accelerators", 2),
        places=[(0, 0), (0, 1)],
        environment="TorchElasticEnvironment",
    )
    assert further == [["--local_rank=0"], ["--local_rank=1"]]


@pytest.mark.slow
def test_the_deepspeed_launcher_on_two_nodes(assert_trains, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("first slots=1\nsecond slots=1\n")
    address = ("--hostfile", hosts, "--no_ssh", "--no_local_rank", "--master_addr", "127.0.0.1")
    once = deepspeed(*address)
    nodes = [(*once, "--node_rank", number) for number in (0, 1)]
    further = assert_trains(
        *nodes,
        places=[(0, 0), (1, 0)],
        environment="TorchElasticEnvironment",
        arguments=STAGE_3 | {"num_nodes": 2},
    )
    assert further == [[], []]


def test_devices_that_contradict_the_deepspeed_launcher(tmp_path):
    launcher = deepspeed("--no_local_rank", "--num_accelerators", 2)
    ((code, output),) = run_all(
        (*launcher, PROGRAM, tmp_path, json.dumps(STAGE_3 | {"devices": 3}))
    )
    assert code == 1
    assert (
        "ConfigurationError: The launcher started 2 processes (WORLD_SIZE=2), but devices=3 and "
        "num_nodes=1 ask for 3. Pass devices=2 and num_nodes=1, or let it start 3."
    ) in output


def test_torchrun_on_two_nodes(assert_trains):
    meeting = (
        "--nnodes",
        2,
        "--nproc-per-node",
        1,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port(),
    )
    assert_trains(
        *[(*programs.TORCHRUN, *meeting, "--node-rank", number) for number in (0, 1)],
        places=[(0, 0), (1, 0)],
        environment="TorchElasticEnvironment",
        arguments=STAGE_3 | {"num_nodes": 2},
    )


@pytest.mark.cluster
def test_mpirun(assert_trains):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: tests/cluster/install.sh")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    launcher = ("mpirun", *root, "--oversubscribe", "-n", 2, sys.executable)
    assert_trains(launcher, places=[(0, 0), (0, 1)], environment="MPIEnvironment")


@pytest.mark.cluster
def test_srun(assert_trains, slurm):
    launcher = ("srun", "--nodes=1", "--ntasks=2", "--overcommit", sys.executable)
    assert_trains(launcher, places=[(0, 0), (0, 1)], environment="SLURMEnvironment", **slurm)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ctrl-c", "killed"])
def test_nobody_is_left_under_the_deepspeed_launcher(tmp_path, end):
    def is_alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    launcher = deepspeed("--no_local_rank", "--num_accelerators", 2)
    script = (TRAINED_UNTIL_INTERRUPTED, tmp_path, STAGE_3["strategy"], "steps")
    process = start([*map(str, (*launcher, *script))], dict(os.environ))
    wait_until(
        lambda: len([path for path in tmp_path.glob("pid-*") if path.read_text()]) == 2,
        "pids of both ranks",
    )
    ranks = [int((tmp_path / f"pid-{rank}").read_text()) for rank in (0, 1)]
    if end == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(ranks[0], signal.SIGKILL)
    assert process.wait(timeout=100 * slowness()) != 0
    wait_until(lambda: not any(map(is_alive, ranks)), "end of both ranks")
    if end == "ctrl-c":
        assert (tmp_path / "saved" / "on_exception.ckpt").exists()
