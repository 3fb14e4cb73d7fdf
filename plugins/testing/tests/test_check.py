"""`core check`: the conformance kit from the command line."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from core.cli.cards import proof
from core.cli.commands import command
from core_testing import programs
from core_testing.cli import card
from core_testing.waiting import slowness, wait_until
from support.missing_packages import hide

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
    """Installs the plugin, and runs the kit on it."""

    def check(*arguments, suites=None, **options):
        own = {} if suites is None else {"lines_plugin.conformance": suites}
        core_cli.install("lines-plugin", ENTRY, modules={**own, "lines_plugin.__init__": PLUGIN})
        return core_cli("check", *arguments, **options)

    return check


def test_a_logger_that_is_all_right(lines):
    done = lines("lines", "-k", "metrics or finalizes")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("all well  lines: a logger of lines-plugin 1.0, on cpu: 4 passed, ")
    assert "4/4  passed   test_finalizes[interrupted]" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_it_leaves_no_process_behind(core_cli, ending):
    def is_group(number):
        try:
            os.killpg(number, 0)
        except ProcessLookupError:
            return False
        return True

    groups = core_cli.working / "groups"
    slow = (  # with a thread that would keep the process
        "import os, threading, time; threading.Thread(target=time.sleep, args=(200,)).start()"
        f"; os.makedirs(f'{groups}/{{os.getpgrp()}}', exist_ok=True); time.sleep(3)\n"
    )
    core_cli.install(
        "lines-plugin", ENTRY, modules={"lines_plugin.__init__": PLUGIN.replace("pass\n", slow)}
    )
    process = core_cli(
        "check",
        "lines",
        "-k",
        "metrics",
        begin=lambda command, timeout, **how: subprocess.Popen(command, **how),
    )
    wait_until(lambda: groups.exists() and any(groups.iterdir()), "test that has begun")
    process.send_signal(ending)
    assert process.wait(60 * slowness()) == {signal.SIGTERM: 143, signal.SIGKILL: -9}[ending]
    wait_until(
        lambda: not any(is_group(int(each.name)) for each in groups.iterdir()), "end of all groups"
    )


def test_failures_are_told_and_written(core_cli, lines):
    options = ["--options", '{"marker": "<u>here</u>"}', "--html", "report.html"]
    done = lines("lines", "-k", "metrics or bounded", *options)
    assert done.returncode == 1
    assert (
        "Failed\n  test_requirement_on_core_is_bounded\n    AssertionError: its metadata doesn't "
        "require" in done.stdout
    )
    assert "every logger     failed  2 failed" in done.stdout
    page = (core_cli.working / "report.html").read_text()
    assert "&lt;u&gt;here" in page
    assert "<u>" not in page


@pytest.mark.slow
def test_a_suite_that_the_package_ships_is_used(lines):
    done = lines("lines-plugin", "-k", "fails or metrics", suites=SUITE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lines_plugin.conformance:TestLines" in done.stdout
    assert "Known to fail\n  test_fails\n    it is made so" in done.stdout


@pytest.mark.slow
def test_json_is_alone_on_standard_output(lines):
    done = lines("lines", "-k", "metrics", "--json")
    report = json.loads(done.stdout)
    assert report["versions"]["torch"]
    (suite,) = report["suites"]
    assert [test["outcome"] for test in suite["tests"]] == ["passed"]


@pytest.mark.slow
def test_capabilities_are_a_table(core_cli):
    done = core_cli("check", "single_device", "-k", "clipped_by_value or yes_and_no", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        line.split("  ")[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines() if line
    }
    assert rows["CLIP_BY_VALUE"] == "proven 1 passed"
    assert rows["COLLECTIVES"] == "not declared 1 skipped"
    assert rows["SEVERAL_MODULES"] == "not tested none ran"


@pytest.mark.slow
def test_a_parallel_strategy_on_one_device(core_cli):
    done = core_cli(
        "check",
        "ddp_find_unused_parameters_true",
        "--num-processes",
        "1",
        "-k",
        "gathers or reduces or alone",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 15 skipped" in done.stdout


@pytest.mark.slow
def test_ranks_in_one_process_and_what_they_leave_out(core_cli):
    done = core_cli("check", "ddp", "--in-process", "-k", "sgd_momentum or killed", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks in one process can't show how processes end (1 test)" in done.stdout


def test_a_suite_that_cannot_be_imported(lines):
    done = lines("lines", suites="import not_there_at_all\n")
    assert done.returncode == 1
    assert "The suites can't be collected" in done.stderr
    assert "No module named 'not_there_at_all'" in done.stderr


@pytest.mark.slow
def test_what_can_run_nowhere_here_is_not_good(core_cli):
    done = core_cli("check", "core-training:mps", "-k", "computes")
    assert done.returncode == 1
    assert ", on mps, one process" in done.stdout
    assert "every accelerator  not tested  1 skipped" in done.stdout
    assert "Left out\n  core-training:mps: this torch was built without MPS (1 test)" in done.stdout


def test_a_process_that_dies(lines):
    done = lines(
        "lines",
        "-k",
        "test_fails",
        suites=SUITE.replace('assert False, "on purpose"', "import os; os._exit(7)"),
    )
    assert done.returncode == 1
    assert "ended early, with code 7" in done.stderr


@pytest.mark.slow
def test_names_that_lead_nowhere(core_cli, lines):
    assert "Did you mean 'lines'" in lines("line").stderr
    assert "No test matches -k 'nonsense'" in core_cli("check", "lines", "-k", "nonsense").stderr
    assert "offers no strategy" in core_cli("check", "lines-plugin", "--kind", "strategy").stderr
    assert (
        "there is no folder not/there"
        in core_cli("check", "lines", "--html", "not/there/report.html").stderr
    )
    nothing = core_cli("check")
    assert nothing.returncode == 2
    assert "Name a plugin, or pass --all." in nothing.stderr


def test_help_imports_no_torch():
    program = "import sys; from core.cli.commands import command\n"
    program += (
        "try: command(['check', '--help'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--html" in done.stdout


def test_without_pytest_it_says_what_to_install(monkeypatch):
    hide(monkeypatch, "pytest")
    done = CliRunner().invoke(command, ["check", "csv"])
    assert done.exit_code == 1
    assert (
        "The conformance kit needs pytest, which is not installed: pip install pytest"
        in done.output
    )


@pytest.mark.slow
def test_a_card_keeps_what_was_proven_and_of_which_files(core_cli):
    core_cli.install("lines-plugin", ENTRY, modules={"lines_plugin.__init__": PLUGIN})
    home = {"XDG_DATA_HOME": str(core_cli.working / "data")}
    package = core_cli.packages / "lines_plugin"

    def listed():
        (row,) = [
            row
            for row in json.loads(core_cli("list", "loggers", "--proven", "--json", **home).stdout)
            if row["alias"] == "lines"
        ]
        return row["proven"]

    assert listed() == "nothing"
    done = core_cli("check", "lines", "--card", str(package / "card.json"), "--by", "Ada", **home)
    assert f"The card is {package / 'card.json'}." in done.stderr
    (result,) = json.loads((package / "card.json").read_text())["results"]
    assert (result["provider"], result["version"], result["by"]) == ("lines-plugin", "1.0", "Ada")
    failures = [test for _, _, test in result["failures"]]
    assert failures == [
        "test_requirement_on_core_is_bounded",
        "test_distribution_contains_its_module",
    ]
    assert result["outcomes"]["failed"] == 2
    known = result["mutants"]["known"]
    assert result["mutants"] == {"excluded": known - 3 - 1, "known": known}, (
        "what those two tests catch isn't excluded"
    )
    tests = f"{result['outcomes']['passed']} of {result['outcomes']['passed'] + 2}"
    assert listed().startswith(f"{tests}, by its author, 20")
    with (package / "__init__.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    assert listed().startswith(f"not of these files, {tests}, by its author")
    core_cli("check", "lines", "--card", **home)
    assert listed().startswith(f"{tests}, rerun here, 20")


def test_a_card_tells_of_whole_suites():
    done = CliRunner().invoke(command, ["check", "csv", "-k", "metrics", "--card"])
    assert done.exit_code == 1
    assert "leave out -k, --options and --in-process" in done.output


def test_runs_with_a_core_that_keeps_no_cards(core_cli):
    """Its oldest, of the same version: this one, but for those names."""
    core_cli.install("lines-plugin", ENTRY, modules={"lines_plugin.__init__": PLUGIN})
    older = """from core import cli

main, its_own = cli.main, cli.__getattr__


def without_cards(name):
    if name in ("own_card", "files_digest", "package_folder"):
        raise AttributeError(name)
    return its_own(name)


cli.__getattr__ = without_cards
"""
    core_cli.install("older", modules={"older": older})

    def run(*arguments):
        command = [sys.executable, "-c", "import older; older.main()", "check", "lines", *arguments]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(core_cli.packages), *sys.path])
        }
        return programs.run(command, cwd=core_cli.working, env=environment, timeout=120)

    done = run("-k", "metrics", "--json")
    assert json.loads(done.stdout)["files"] == {}
    assert run("--card").stderr.endswith(
        "keeps no cards. Install the release, or leave out --card.\n"
    )


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"results": 3}', '{"results": [{"files": "\\u001b[2J"}]}', "\x00"]
)
def test_a_card_that_is_none_proves_nothing(tmp_path, monkeypatch, text):
    (tmp_path / "lines_plugin").mkdir()
    (tmp_path / "lines_plugin" / "__init__.py").touch()
    (tmp_path / "lines_plugin" / "card.json").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    row = SimpleNamespace(
        kind="logger", alias="lines", provider="lines-plugin", target="lines_plugin:LinesLogger"
    )
    assert proof(row) == "nothing"


def test_a_machine_without_the_device_leaves_what_one_with_it_has_shown(tmp_path):
    path, key = (
        tmp_path / "card.json",
        {"kind": "accelerator", "alias": "a", "provider": "p", "ground": "a"},
    )
    for passed, met_device in ((20, True), (13, False), (21, True)):
        card.write(path, [{**key, "outcomes": {"passed": passed}, "met_device": met_device}])
        (kept,) = json.loads(path.read_text())["results"]
        assert kept["outcomes"]["passed"] == {13: 20}.get(passed, passed)
