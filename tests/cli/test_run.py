import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from core.cli.run import _torchrun
from core_testing import programs
from core_testing.waiting import slowness, wait_until
from support.fake_distributions import make_distribution

SCRIPT = """
import sys
from core import Fabric

fabric = Fabric(accelerator="cpu")
fabric.launch()
total = fabric.all_reduce(float(fabric.global_rank + 1), reduce_op="sum")
fabric.print(fabric.world_size, float(total), *sys.argv[1:])
fabric.teardown()
"""
BY_TORCHRUN = ("--max-restarts", "0")


def core_run(folder, *arguments):
    return programs.run(
        [*programs.CORE, "run", *arguments], cwd=folder, timeout=100, forks_others=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), BY_TORCHRUN])
def test_a_script_runs_once_a_device_with_its_own_arguments(tmp_path, way):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = core_run(tmp_path, "--devices", "2", *way, "train.py", "--devices", "7", "-m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 3.0 --devices 7 -m"


@pytest.mark.parametrize(
    ("way", "end", "ended"),
    [
        (BY_TORCHRUN, "raise SystemExit(3)", "exited with code 3"),
        ((), "os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_a_failed_rank_is_named_in_a_line(tmp_path, way, end, ended):
    (tmp_path / "fails.py").write_text(f"import os\nif os.environ['RANK'] == '1': {end}")
    done = core_run(tmp_path, "--devices", "2", *way, "fails.py")
    assert done.returncode == 1
    assert re.fullmatch(
        rf"core run: Rank 1 \(pid \d+\) {ended}.*, and the run with it.\n", done.stderr
    )


@pytest.mark.slow
def test_other_devices_in_the_script_are_refused_with_its_own_options(tmp_path):
    (tmp_path / "train.py").write_text(
        "from core import Fabric\nFabric(accelerator='cpu', devices=3)"
    )
    done = core_run(tmp_path, "--devices", "1", "train.py")
    assert done.returncode == 1
    assert "core run started 1 process" in done.stderr
    assert "or start it with --devices 3 --num-nodes 1." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0", "train.py"], "or auto; got '0'"),
        (
            ["--num-nodes", "2", "--node-rank", "2", "train.py"],
            "expected at most 1, got 2: nodes count from 0",
        ),
        ([], "Missing argument 'SCRIPT'"),
        (["--nproc_per_node=two", "train.py"], "or auto; got 'two'"),
        (["--node-rnak", "1", "train.py"], "No such option '--node-rnak'"),
        (["--devices", "2", "nofile.py"], "there is no file 'nofile.py' in"),
    ],
)
def test_a_command_line_that_cannot_be_meant(core_cli, arguments, message):
    done = core_cli("run", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert len(done.stderr.splitlines()) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "how", "when"), [((), ["bug.py"], "late"), (BY_TORCHRUN, ["-m", "bug"], "early")]
)
def test_a_bug_takes_the_lines_that_it_takes_without(tmp_path, way, when, how):
    bug = """
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
    (tmp_path / "bug.py").write_text(bug)
    done = core_run(tmp_path, "--devices", "2", *way, *how, when)
    lines = done.stderr.splitlines()
    assert [
        line.strip() for line in lines if "File" not in line and "~" not in line and "^" not in line
    ] == [
        "Traceback (most recent call last):",
        "load()",
        'return {}["labels"]',
        "KeyError: 'labels'",
        lines[-1],
    ]
    assert (
        lines[1] == f'  File "{tmp_path}/bug.py", line {8 if when == "early" else 12}, in <module>'
    )
    assert re.fullmatch(
        r"core run: Rank [01] \(pid \d+\) exited with code 1, and the run with it.", lines[-1]
    )


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
        "print(__name__, __file__, part.name, sys.argv, type(pickle.loads(pickle.dumps(Own()))) is "
        "Own)\n"
        "atexit.register(lambda: print(sys.modules['__main__'].__file__, Own.__name__))\n"
    )
    command = [sys.executable, "-m", "core.cli.rank_program", "", "main.py", "--lr=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"__main__ {tmp_path}/main.py beside ['main.py', '--lr=1'] True",
        f"{tmp_path}/main.py Own",
    ]


WAITS = """
import os, signal, subprocess, sys, time

def show(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def handle(number, frame):
    show("answered", number)
    sys.exit(0)

how = sys.argv[1]
for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGIO] if how == "deaf" else [])):
    signal.signal(number, signal.SIG_IGN if how in ("ignores", "deaf") else handle)
if how == "starts":
    show("child", subprocess.Popen(["sleep", "600"]).pid)
show("rank", os.environ["RANK"], os.getpid())
while not (how == "fails" and os.environ["RANK"] == "1" and os.path.exists("go")):
    time.sleep(0.02)
raise KeyError("labels")
"""


class Run:
    """A script in two ranks, which are at work."""

    def __init__(self, folder, how, *options):
        (folder / "waits.py").write_text(WAITS)
        command = [*programs.CORE, "run", "--devices", "2", *options, "waits.py", how]
        self.process = programs.start(command, cwd=folder, forks_others=False)
        found = wait_until(lambda: self._found(r"rank (\d) (\d+)"), "two ranks")
        self.pids = {int(rank): int(pid) for rank, pid in found}
        self.children = [int(pid) for pid in re.findall(r"child (\d+)", self.process.output())]

    def _found(self, pattern):
        assert self.process.poll() is None, self.process.errors()
        found = re.findall(pattern, self.process.output())
        return found if len(found) == 2 else None

    def ends(self):
        """Its code, once no process is left."""
        code = self.process.wait(60 * slowness())
        wait_until(
            lambda: not any(map(is_at_work, [*self.pids.values(), *self.children])),
            "end of all ranks",
        )
        return code


def is_at_work(pid):
    """A process that nobody waits for stays behind as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def waits(tmp_path):
    runs = []
    yield lambda *arguments: runs.append(Run(tmp_path, *arguments)) or runs[-1]
    for run in runs:
        for pid in filter(is_at_work, (run.process.pid, *run.pids.values(), *run.children)):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("way", "number"), [((), signal.SIGTERM), ((), signal.SIGINT), (BY_TORCHRUN, signal.SIGTERM)]
)
def test_a_signal_is_handed_on_and_awaited(waits, way, number):
    run = waits("answers", *way)
    os.kill(run.process.pid, number)
    assert run.ends() == 128 + number
    assert run.process.output().count(f"answered {number:d}") == 2
    assert "Traceback" not in run.process.errors()


def test_a_rank_runs_without_an_output(tmp_path):
    (tmp_path / "writes.py").write_text("print('lost')\nopen('done', 'w').close()")
    words = [sys.executable, "-m", "core.cli.rank_program", "", "writes.py"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_signal_reaches_the_processes_of_a_rank(waits):
    run = waits("starts")
    os.kill(run.process.pid, signal.SIGTERM)
    assert len(run.children) == 2
    assert run.ends() == 143


def test_a_second_signal_ends_ranks_that_answer_none(waits):
    run = waits("deaf")
    os.kill(run.process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(1)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.ends() == 130


@pytest.mark.parametrize("way", [(), BY_TORCHRUN])
def test_no_rank_outlives_a_main_process_that_is_killed(waits, way):
    run = waits("ignores", *way)
    os.kill(run.process.pid, signal.SIGKILL)
    run.ends()


def test_a_rank_that_fails_ends_the_others_and_its_error_comes_last(waits, tmp_path):
    run = waits("fails")
    (tmp_path / "go").touch()
    assert run.ends() == 1
    assert run.process.output().count("answered 15") == 1
    *_, error, line = run.process.errors().splitlines()
    assert error == "KeyError: 'labels'"
    assert re.fullmatch(
        rf"core run: Rank 1 \(pid {run.pids[1]}\) exited with code 1, and the run with it.", line
    )


@pytest.mark.slow
def test_a_rank_that_goes_on_all_the_same_is_ended(waits):
    run = waits("deaf")
    os.kill(run.pids[0], signal.SIGKILL)
    assert run.ends() == 1
    assert "Rank 0" in run.process.errors()


def test_ranks_cannot_tell_who_has_started_them(tmp_path, monkeypatch):
    of_a_run = {
        "MASTER_PORT",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
    shows = """
import json, os
os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)  # torchrun sets it for itself
names = [each for each in os.environ if "RANK" in each or "WORLD" in each or "ROLE" in each or "TORCH" in each]
print(json.dumps({each: os.environ[each] for each in [*names, "MASTER_PORT", "OMP_NUM_THREADS"]}))
"""

    def variables(folder, *options):
        """Those of each rank."""
        (folder / "shows.py").write_text(shows)
        done = core_run(folder, "--devices", "2", *options, "shows.py")
        assert done.returncode == 0, done.stderr
        return sorted(
            (json.loads(line) for line in done.stdout.splitlines()), key=lambda each: each["RANK"]
        )

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ours, torchruns = variables(tmp_path), variables(tmp_path, *BY_TORCHRUN)
    assert [each.keys() for each in ours] == [each.keys() for each in torchruns]
    assert {each["TORCHELASTIC_USE_AGENT_STORE"] for each in ours} == {"False"}
    for each in (*ours, *torchruns):
        assert all(each.pop(name) for name in of_a_run)
    assert ours == torchruns


@pytest.mark.parametrize(
    ("devices", "num_nodes", "restarts", "variable", "by_torchrun"),
    [
        ("2", 1, None, "PATH", False),
        ("2", 1, None, "PET_LOG_DIR", True),
        ("2", 1, 0, "PATH", True),
        ("2", 2, None, "PATH", True),
        ("auto", 1, None, "PATH", True),
    ],
)
def test_torchrun_is_used_where_it_is_asked_for(
    monkeypatch, devices, num_nodes, restarts, variable, by_torchrun
):
    monkeypatch.setattr(os, "environ", {variable: "/"})
    assert bool(_torchrun(devices, num_nodes, 0, "127.0.0.1", 29400, restarts)) == by_torchrun


def test_a_failed_run_begins_again_where_that_is_asked_for(tmp_path):
    (tmp_path / "fails.py").write_text(
        "import os\nround = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint(round)\nassert round "
        "== '1'"
    )
    done = core_run(tmp_path, "--nproc_per_node=2", "--max-restarts", "1", "fails.py")
    assert (done.returncode, sorted(set(done.stdout.split()))) == (0, ["0", "1"]), done.stderr
    assert "core run:" not in done.stderr


@pytest.mark.parametrize("options", [["--with", "acme"], ["--acme"]])
def test_a_prelude_is_called_in_each_rank(tmp_path, monkeypatch, options):
    begin = "import os\ndef begin(): print('begun', os.environ['RANK'])"
    entry_points = "[core.preludes]\nacme = acme_prelude:begin\n"
    make_distribution(
        tmp_path, "core-acme", entry_points_text=entry_points, modules={"acme_prelude": begin}
    )
    (tmp_path / "train.py").write_text("print('trained')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = core_run(tmp_path, "--devices", "2", *options, "train.py")
    assert sorted(done.stdout.splitlines()) == ["begun 0", "begun 1", "trained", "trained"], (
        done.stderr
    )


def test_the_process_that_waits_for_ranks_imports_no_torch(tmp_path):
    (tmp_path / "train.py").write_text("pass")
    program = (
        "import atexit, sys\nfrom core.cli import main\nsys.argv = ['core', 'run', '--devices', "
        "'2', 'train.py']\n"
        "atexit.register(lambda: print('torch' in sys.modules, 'core.launch.stop_others' in "
        "sys.modules))\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "False True\n"), done.stderr
