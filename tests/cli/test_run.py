import os
import re
import sys

import pytest

from core_testing import programs

SCRIPT = """
import sys
from core import Fabric

fabric = Fabric(accelerator="cpu")
fabric.launch()
total = fabric.all_reduce(float(fabric.global_rank + 1), reduce_op="sum")
fabric.print(fabric.world_size, float(total), *sys.argv[1:])
fabric.teardown()
"""


def core_run(folder, *arguments):
    command = [*programs.CORE, "run", *arguments]
    return programs.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100)


@pytest.mark.slow
def test_a_script_runs_once_a_device_with_its_own_arguments(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = core_run(tmp_path, "--devices", "2", "train.py", "--devices", "7", "-m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 3.0 --devices 7 -m"


@pytest.mark.parametrize("name", ["core/__init__.py", "core.py"])
def test_a_folder_whose_own_core_hides_this_one(tmp_path, name):
    """By the console script, which doesn't look into the current folder; its processes do."""
    (tmp_path / "core").mkdir()
    (tmp_path / name).touch()
    (tmp_path / "train.py").write_text("print('ran')")
    program = "import sys; from core.cli import main; sys.argv = ['core', 'run', '--devices', '1', 'train.py']; main()"
    done = programs.run([sys.executable, "-P", "-c", program], cwd=tmp_path, timeout=100)
    assert done.returncode == 2
    assert f"{tmp_path / name} hides the package `core` from processes that start in {tmp_path}" in done.stderr


@pytest.mark.slow
def test_a_failed_rank_is_named_in_a_line(tmp_path):
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    done = core_run(tmp_path, "--devices", "1", "fails.py")
    assert done.returncode == 1
    assert re.fullmatch(r"core run: Rank 0 \(pid \d+\) exited with code 3.*\n", done.stderr)


@pytest.mark.slow
def test_other_devices_in_the_script_are_refused_with_its_own_options(tmp_path):
    (tmp_path / "train.py").write_text("from core import Fabric\nFabric(accelerator='cpu', devices=3)")
    done = core_run(tmp_path, "--devices", "1", "train.py")
    assert done.returncode == 1
    assert "core run started 1 process" in done.stderr
    assert "or start it with --devices 3 --num-nodes 1." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "two", "train.py"], "or auto; got 'two'"),
        (["--devices", "0", "train.py"], "or auto; got '0'"),
        (["--num-nodes", "2", "--node-rank", "2", "train.py"], "expected at most 1, got 2: nodes count from 0"),
        ([], "Missing argument 'SCRIPT'"),
        (["--nproc", "2", "train.py"], "No such option '--nproc'. Did you mean --devices?"),
        (["--nproc_per_node=2", "train.py"], "No such option '--nproc_per_node'. Did you mean --devices?"),
        (["--node-rnak", "1", "train.py"], "No such option '--node-rnak'"),
        (["--devices", "2", "nofile.py"], "there is no file 'nofile.py' in"),
        (["--devices", "2", "-m", "no_such.module"], "there is no module 'no_such' here, nor is one installed"),
    ],
)
def test_a_command_line_that_cannot_be_meant(tmp_path, arguments, message):
    done = core_run(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert len(done.stderr.splitlines()) <= 6


BUG = """
import sys

def load():
    return {}["labels"]

if sys.argv[1] == "early":
    load()
from core import Fabric
fabric = Fabric(accelerator="cpu")
fabric.launch()
load()
"""


# How a script is named and when it fails are independent of each other.
@pytest.mark.parametrize(
    ("how", "when"),
    [
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [(["bug.py"], "late"), (["-m", "bug"], "early")]),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in [(["bug.py"], "early"), (["-m", "bug"], "late")]
        ),
    ],
)
def test_a_bug_takes_the_lines_that_it_takes_without(tmp_path, when, how):
    (tmp_path / "bug.py").write_text(BUG)
    done = core_run(tmp_path, "--devices", "2", *how, when)
    lines = done.stderr.splitlines()
    assert [line.strip() for line in lines if "File" not in line and "~" not in line and "^" not in line] == [
        "Traceback (most recent call last):",
        "load()",
        'return {}["labels"]',
        "KeyError: 'labels'",
        lines[-1],
    ]
    assert lines[1] == f'  File "{tmp_path}/bug.py", line {8 if when == "early" else 12}, in <module>'
    assert re.fullmatch(r"core run: Rank [01] \(pid \d+\) exited with code 1, and the run with it.", lines[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "shown"), [("", "KeyError: 1"), ("sys.excepthook = print", "")])
def test_an_error_is_shown_by_the_hook_that_the_script_has_set(tmp_path, hook, shown):
    (tmp_path / "bug.py").write_text(f"import sys\n{hook}\nraise KeyError(1)")
    done = core_run(tmp_path, "--devices", "1", "bug.py")
    *error, last = done.stderr.splitlines()
    assert last.startswith("core run: Rank 0")
    assert "".join(error[-1:]) == shown
    assert done.stdout.startswith("<class 'KeyError'>" if hook else "")


def test_the_script_is_the_main_module(tmp_path):
    (tmp_path / "part.py").write_text("name = 'beside'")
    (tmp_path / "main.py").write_text(
        "import sys, atexit, pickle, part\n"
        "class Own: pass\n"
        "print(__name__, __file__, part.name, sys.argv, type(pickle.loads(pickle.dumps(Own()))) is Own)\n"
        "atexit.register(lambda: print(sys.modules['__main__'].__file__, Own.__name__))\n"
    )
    done = core_run(tmp_path, "--devices", "1", "main.py", "--lr=1")
    assert done.stdout.splitlines() == [
        f"__main__ {tmp_path}/main.py beside ['main.py', '--lr=1'] True",
        f"{tmp_path}/main.py Own",
    ]
