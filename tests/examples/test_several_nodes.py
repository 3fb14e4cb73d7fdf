"""docs/several-nodes.md: its program on two nodes, as its commands start them, here on one machine."""

import os
import re
from pathlib import Path

import pytest

from core.cluster import reserve_port
from core_testing import programs

PAGE = Path(__file__).parents[2] / "docs" / "several-nodes.md"


@pytest.mark.slow
def test_a_program_runs_on_two_nodes(tmp_path, request):
    page = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (command,) = re.findall(r"^core (run .*) train\.py$", page, re.M)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    changed = {"--main-address": "127.0.0.1", "--main-port": str(reserve_port(request)), "--devices": "1"}
    nodes = []
    for rank in ("0", "1"):
        words = command.split()
        for name, value in {**changed, "--node-rank": rank}.items():
            words[words.index(name) + 1] = value
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        nodes.append(programs.start([*programs.CORE, *words, "train.py"], cwd=tmp_path, env=env))
    outputs = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert [out for out, _ in outputs] == ["2 nodes, 2 processes: y = 3.0 x + 1\n", ""]
