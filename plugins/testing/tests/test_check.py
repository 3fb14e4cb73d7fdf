"""`core check`: the conformance kit from the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

ENTRY = "[core.loggers]\nlines = lines_plugin:LinesLogger\n"
PLUGIN = '''
from core import Logger


class LinesLogger(Logger):
    """Keeps what it is told."""

    def __init__(self, save_dir: str = ".", marker: str = "") -> None:
        """Make it.

        Args:
            save_dir: not used.
            marker: <b>not</b> used.
        """
        if marker:
            raise ValueError(f"<i>{marker}</i>")

    def log_metrics(self, metrics, step):
        pass
'''
SUITE = """
from core_testing import LoggerConformance


class TestLines(LoggerConformance):
    alias = "lines"
    known_failures = {"test_fails": "it is made so"}

    def test_fails(self):
        assert False, "on purpose"
"""


@pytest.fixture
def lines(core_cli):
    def install(**modules):
        core_cli.install("lines-plugin", ENTRY, modules={**modules, "lines_plugin.__init__": PLUGIN})

    return install


def check(core_cli, *arguments, **options):
    return core_cli("check", *arguments, **options)


def test_a_logger_that_is_all_right(core_cli, lines):
    lines()
    done = check(core_cli, "lines", "-k", "metrics or finalizes")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("all well  lines: a logger of lines-plugin 1.0, on cpu: 4 passed, ")
    assert "4/4  passed   test_finalizes[interrupted]" in done.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_it_leaves_no_process_behind(core_cli, lines, ending):
    groups = core_cli.working / "groups"
    slow = (  # with a thread that would keep the process
        "import os, threading, time; threading.Thread(target=time.sleep, args=(200,)).start()"
        f"; os.makedirs(f'{groups}/{{os.getpgrp()}}', exist_ok=True); time.sleep(3)\n"
    )
    core_cli.install("lines-plugin", ENTRY, modules={"lines_plugin.__init__": PLUGIN.replace("pass\n", slow)})
    process = check(
        core_cli, "lines", "-k", "metrics", begin=lambda command, timeout, **how: subprocess.Popen(command, **how)
    )
    until(lambda: groups.exists() and any(groups.iterdir()))
    process.send_signal(ending)
    assert process.wait(60) == {signal.SIGTERM: 143, signal.SIGKILL: -9}[ending]
    until(lambda: not any(is_group(int(each.name)) for each in groups.iterdir()))


def until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    pytest.fail("it didn't come about within a minute")


def is_group(number):
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_failures_are_told_and_written(core_cli, lines):
    lines()
    options = ["--options", '{"marker": "<u>here</u>"}', "--html", "report.html"]
    done = check(core_cli, "lines", "-k", "metrics or bounded", *options)
    assert done.returncode == 1
    assert (
        "Failed\n  test_requirement_on_core_is_bounded\n    AssertionError: its metadata doesn't require" in done.stdout
    )
    assert "every logger     failed  2 failed" in done.stdout
    page = (core_cli.working / "report.html").read_text()
    assert "&lt;u&gt;here" in page
    assert "<u>" not in page


def test_a_suite_that_the_package_ships_is_used(core_cli, lines):
    lines(**{"lines_plugin.conformance": SUITE})
    done = check(core_cli, "lines-plugin", "-k", "fails or metrics")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lines_plugin.conformance:TestLines" in done.stdout
    assert "Known to fail\n  test_fails\n    it is made so" in done.stdout


def test_json_is_alone_on_standard_output(core_cli, lines):
    lines()
    done = check(core_cli, "lines", "-k", "metrics", "--json")
    report = json.loads(done.stdout)
    assert report["versions"]["torch"]
    (suite,) = report["suites"]
    assert [test["outcome"] for test in suite["tests"]] == ["passed"]


def test_capabilities_are_a_table(core_cli):
    done = check(core_cli, "single_device", "-k", "clipped_by_value or yes_and_no", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("  ")[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines() if line}
    assert rows["CLIP_BY_VALUE"] == "proven 1 passed"
    assert rows["COLLECTIVES"] == "not declared 1 skipped"
    assert rows["SEVERAL_MODULES"] == "not tested none ran"


def test_a_parallel_strategy_on_one_device(core_cli):
    done = check(
        core_cli, "ddp_find_unused_parameters_true", "--num-processes", "1", "-k", "gathers or reduces or alone"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 15 skipped" in done.stdout


def test_a_suite_that_cannot_be_imported(core_cli, lines):
    lines(**{"lines_plugin.conformance": "import not_there_at_all\n"})
    done = check(core_cli, "lines")
    assert done.returncode == 1
    assert "The suites can't be collected" in done.stderr
    assert "No module named 'not_there_at_all'" in done.stderr


def test_what_can_run_nowhere_here_is_not_good(core_cli):
    done = check(core_cli, "core:mps", "-k", "computes")
    assert done.returncode == 1
    assert ", on mps, one process" in done.stdout
    assert "every accelerator  not tested  1 skipped" in done.stdout
    assert "Left out\n  core:mps: this torch was built without MPS (1 test)" in done.stdout


def test_a_process_that_dies(core_cli, lines):
    lines(**{"lines_plugin.conformance": SUITE.replace('assert False, "on purpose"', "import os; os._exit(7)")})
    done = check(core_cli, "lines", "-k", "test_fails")
    assert done.returncode == 1
    assert "ended early, with code 7" in done.stderr


def test_names_that_lead_nowhere(core_cli, lines):
    lines()
    assert "Did you mean 'lines'" in check(core_cli, "line").stderr
    assert "No test matches -k 'nonsense'" in check(core_cli, "lines", "-k", "nonsense").stderr
    assert "offers no strategy" in check(core_cli, "lines-plugin", "--kind", "strategy").stderr
    assert "there is no folder not/there" in check(core_cli, "lines", "--html", "not/there/report.html").stderr
    nothing = check(core_cli)
    assert nothing.returncode == 2
    assert "Name a plugin, or pass --all." in nothing.stderr


def test_help_imports_no_torch():
    program = "import sys; from core.cli.commands import command\n"
    program += "try: command(['check', '--help'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--html" in done.stdout


def test_without_pytest_it_says_what_to_install(tmp_path):
    program = "import sys, importlib.util as u; find = u.find_spec\n"
    program += "import importlib.metadata\n"
    program += "u.find_spec = lambda name, *a: None if name == 'pytest' else find(name, *a)\n"
    program += "from core.cli.commands import command\ncommand(['check', 'csv'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "The conformance kit needs pytest, which is not installed: pip install pytest" in done.stderr
