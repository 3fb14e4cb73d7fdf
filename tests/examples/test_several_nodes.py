"""docs/several-nodes.md: its program on two nodes, as its commands and files start them, here on
one machine.

Its file for SLURM is run by tests/cluster, and what it says of Ray by the tests of core-ray.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from core import Found
from core.cluster import reserve_port
from core_kubeflow import KubeflowEnvironment
from core_testing import programs
from core_testing.waiting import slowness

PAGE = (Path(__file__).parents[2] / "docs" / "several-nodes.md").read_text(encoding="utf-8")
FILES = [yaml.safe_load(each) for each in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]


def run_nodes(folder, start):
    """The page's program on two nodes: what it prints. `start(rank)` starts the node's command
    there.
    """
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (folder / "train.py").write_text(program, encoding="utf-8")
    nodes = [start(rank) for rank in ("0", "1")]
    outputs = [node.communicate(timeout=120 * slowness()) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    return [out for out, _ in outputs]


ENDED = ["2 nodes, 2 processes: y = 3.0 x + 1\n", ""]


@pytest.mark.slow
def test_a_program_runs_on_two_nodes(tmp_path, request):
    (command,) = re.findall(r"^core (run --num-nodes 2 .*) train\.py$", PAGE, re.M)
    changed = {
        "--main-address": "127.0.0.1",
        "--main-port": str(reserve_port(request)),
        "--devices": "1",
    }

    def start(rank):
        words = command.split()
        for name, value in {**changed, "--node-rank": rank}.items():
            words[words.index(name) + 1] = value
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return programs.start([*programs.CORE, *words, "train.py"], cwd=tmp_path, env=env)

    assert run_nodes(tmp_path, start) == ENDED


@pytest.mark.slow
def test_skypilots_file_runs_on_two_nodes(tmp_path, request):
    """Its `run` in a shell on each node, with the variables that SkyPilot sets."""
    (task,) = [each for each in FILES if "run" in each]
    assert task["num_nodes"] == 2
    command = task["run"].replace("29500", str(reserve_port(request)))
    variables = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n10.0.0.2",
    }
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "core").write_text(f'#!/bin/sh\nexec {shlex.join(programs.CORE)} "$@"\n')
    (tmp_path / "bin" / "core").chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def start(rank):
        env = os.environ | variables | path | {"SKYPILOT_NODE_RANK": rank}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["bash", "-c", command], cwd=tmp_path, env=env, stdout=pipe, stderr=pipe, text=True
        )

    assert run_nodes(tmp_path, start) == ENDED


def test_pods_of_a_jobset_have_the_variables_of_a_trainjob(monkeypatch):
    """Those of the file, and the node's number, which Kubernetes gives to each pod."""
    (jobset,) = [each for each in FILES if each.get("kind") == "JobSet"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "1") for each in container["env"]}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment = KubeflowEnvironment()
    assert KubeflowEnvironment.detect() == Found(2, priority=50)
    assert job["parallelism"] == job["completions"] == environment.num_nodes() == 2
    assert (environment.node_rank(), environment.main_port) == (1, 29500)
    first = f"{jobset['metadata']['name']}-{replicated['name']}-0-0.{jobset['metadata']['name']}"
    assert environment.main_address == first
