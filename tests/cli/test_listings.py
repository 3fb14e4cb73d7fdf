import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from core.contract import KINDS
from support.hostile import SPOOF, assert_tame

STRATEGY = """
from core import Strategy

class AcmeStrategy(Strategy):
    '''A strategy of acme.'''
"""

FIELDS = {
    "kind",
    "alias",
    "target",
    "provider",
    "version",
    "status",
    "detail",
    "summary",
    "location",
}


def acme(core_cli, name="core-acme", alias="acme", module="core_acme", source=STRATEGY, **options):
    core_cli.install(
        name,
        f"[core.strategies]\n{alias} = {module}:AcmeStrategy\n",
        requires=options.pop("requires", ("core-training>=0.1",)),
        modules={module: source},
        **options,
    )


def rows_of(done):
    assert done.returncode in (0, 1), done.stderr
    return {row["alias"] or row["provider"]: row for row in json.loads(done.stdout)}


def test_a_plugin_with_package_and_version(core_cli):
    acme(core_cli, version="2.5")
    done = core_cli("list-strategies")
    assert done.returncode == 0
    assert re.search(r"^acme +AcmeStrategy +core-acme +2\.5 +ok$", done.stdout, re.MULTILINE)
    assert re.search(r"^Alias +Class +Package +Version +Status$", done.stdout, re.MULTILINE)
    assert re.search(r"^single_device +SingleDeviceStrategy +core-base ", done.stdout, re.MULTILINE)


def test_presets_are_folded_into_the_row_of_their_class(core_cli):
    lines = [
        "acme = core_acme:AcmeStrategy",
        "acme_slow = core_acme:acme_slow",
        "acme_quick = core_acme:acme_quick",
    ]
    core_cli.install(
        "core-acme",
        "[core.strategies]\n" + "\n".join([*lines, "other_slow = core_acme:other_slow"]),
    )
    core_cli.install("core-bold", "[core.strategies]\nacme_bold = core_bold:acme_bold\n")
    folded = core_cli("list-strategies").stdout
    assert re.search(
        r"^acme +AcmeStrategy .+\n    and its 2 presets, such as acme_slow$", folded, re.MULTILINE
    )
    shown = {"acme_bold", "other_slow"}  # of nobody's class
    hidden = {"acme_quick", "acme_slow"}
    assert {*re.findall(r"^\w+(?= +preset)", folded, re.MULTILINE)} & (shown | hidden) == shown
    whole = core_cli("list-strategies", "--all").stdout
    assert {*re.findall(r"^\w+(?= +preset)", whole, re.MULTILINE)} >= shown | hidden
    assert rows_of(core_cli("list-strategies", "--json")).keys() >= hidden


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.plural)
def test_every_kind_has_its_listing(core_cli, kind):
    core_cli.install("core-acme", f"[{kind.group}]\nacme_thing = core_acme:Thing\n")
    done = core_cli("list", kind.plural, "--json")
    rows = rows_of(done)
    assert rows["acme_thing"]["provider"] == "core-acme"
    assert rows["acme_thing"].keys() == FIELDS
    assert all(row["kind"] == kind.name for row in rows.values())
    assert rows.keys() > {"acme_thing"}, "and the built-ins"


def test_the_unusable_are_counted_and_shown_on_request(core_cli):
    acme(core_cli)
    acme(core_cli, "core-old", alias="old", module="core_old", requires=("core-training>=99",))
    acme(core_cli, "core-rival", alias="acme", module="core_rival")
    acme(core_cli, "core-shut", alias="shut", module="core_shut")
    core_cli.install("core-bad", "[core.strategies]\nbad = no target\n")
    core_cli.install("core-worse", "[core.strategies]\nthis line is malformed\n")
    short = core_cli("list-strategies", CORE_DISABLE_PLUGINS="core-shut")
    assert "acme" not in short.stdout
    hint = " ".join(short.stderr.split())
    assert (
        "Not shown: 1 blocked, 2 broken, 2 conflict, 1 incompatible. See `core list strategies "
        "--all`." in hint
    )
    long = core_cli("list-strategies", "--all", CORE_DISABLE_PLUGINS="core-shut")
    assert "core-shut 1.0 blocked CORE_DISABLE_PLUGINS names 'core-shut'" in " ".join(
        long.stdout.split()
    )
    statuses = {
        row["status"] for row in json.loads(core_cli("list-strategies", "--all", "--json").stdout)
    }
    assert statuses >= {"ok", "conflict", "incompatible", "broken"}


RAISING = "raise OSError('libacme.so is missing')\n"
LEAVING = "import sys\nsys.exit(3)\n"
CHATTY = "print('{}')\n" + STRATEGY


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        (STRATEGY, "ok", ""),
        (CHATTY, "ok", ""),
        (RAISING, "fails", "OSError: libacme.so is missing"),
        (LEAVING, "fails", "SystemExit: 3"),
        ("AcmeStrategy = int\n", "fails", "expected a subclass of core.contract.strategy.Strategy"),
        ("", "fails", "has no attribute 'AcmeStrategy'"),
    ],
    ids=["good", "chatty", "raises", "sys.exit", "wrong class", "empty"],
)
def test_check_imports_each(core_cli, source, status, error):
    acme(core_cli, source=source)
    only_acme = {"CORE_PLUGINS": "core-acme", "CORE_DISABLE_PLUGINS": "single_device"}
    done = core_cli("list-strategies", "--check", "--json", **only_acme)
    rows = rows_of(done)
    assert rows.keys() == {"acme"}
    assert rows["acme"].keys() == FIELDS | {"check"}
    check = rows["acme"]["check"]
    assert check.keys() == {"status", "import_s", "error"}
    assert check["status"] == status
    assert error in check["error"]
    assert check["import_s"] >= 0
    assert done.returncode == (0 if status == "ok" else 1)


def test_check_as_text(core_cli):
    acme(core_cli, source=RAISING)
    done = core_cli("list-strategies", "--check", CORE_PLUGINS="core-acme")
    assert done.returncode == 1
    assert re.search(
        r"^acme\s+AcmeStrategy +core-acme +1\.0 +fails +\d+\.\d\d s$", done.stdout, re.MULTILINE
    )
    assert "OSError: libacme.so is missing" in " ".join(done.stdout.split())
    assert re.search(
        r"^single_device\s+SingleDeviceStrategy .* ok +\d+\.\d\d s$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize("columns", [30, 120])
@pytest.mark.parametrize(
    "arguments",
    [["list-strategies", "--all"], ["list", "plugins", "--all"]],
    ids=lambda words: words[0],
)
def test_nothing_is_cut_off_at_any_width(core_cli, columns, arguments):
    long = "acme_with_a_name_that_goes_on_for_a_while_true"
    acme(core_cli, alias=long)
    acme(core_cli, "core-old", alias="old", module="core_old", requires=("core-training>=99",))
    done = core_cli(*arguments, columns=columns)
    assert "…" not in done.stdout
    assert "core-training>=99" in done.stdout
    if arguments[0] == "list-strategies":
        assert long in done.stdout.split()
        assert "SingleDeviceStrategy" in done.stdout.split()
    lines = done.stdout.splitlines()
    assert not [line for line in lines if len(line) > columns and len(line.split()) > 1], (
        done.stdout
    )


def test_more_is_a_pip_install_away(core_cli):
    hint = " ".join(core_cli("list-strategies", CORE_PLUGINS="").stderr.split())
    assert "`pip install core-ddp`" in hint
    acme(core_cli)
    assert "pip install" not in core_cli("list-strategies").stderr


@pytest.mark.slow
def test_a_long_list_into_a_pipe_that_closes(core_cli):
    lines = "".join(f"alias_{number} = core_acme:AcmeStrategy\n" for number in range(3000))
    core_cli.install("core-acme", f"[core.strategies]\n{lines}")
    path = os.pathsep.join(filter(None, [str(core_cli.packages), os.environ.get("PYTHONPATH")]))
    for count in (1, 2000):
        done = subprocess.run(
            f"{shlex.quote(sys.executable)} -m core list-strategies | head -n {count}",
            shell=True,
            cwd=core_cli.working,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert len(done.stdout.splitlines()) == count
        assert done.stderr == ""


def test_list_plugins(core_cli):
    acme(core_cli, version="2.5", summary="Acme for core")
    core_cli.install("core-events", "[core.hooks]\nprinter = core_events\n")
    core_cli.install(
        "core-bad",
        "[core.strategies]\nthis line is malformed\n[core.loggers]\nbad = core_bad:Bad\n",
    )
    done = core_cli("list", "plugins")
    assert re.search(r"^core-acme +2\.5 +ok +1 strategy$", done.stdout, re.MULTILINE)
    assert re.search(r"^core-events +1\.0 +ok +1 event hook$", done.stdout, re.MULTILINE)
    problems = " ".join(done.stdout.partition("Problems")[2].split())
    assert problems.startswith("core-bad broken ")
    assert "line 2 of entry_points.txt is 'this line is malformed'" in problems
    entries = {
        entry["provider"]: entry
        for entry in json.loads(core_cli("list", "plugins", "--json").stdout)
    }
    assert entries["core-acme"]["offers"] == {"strategy": 1}
    assert entries["core-acme"]["summary"] == "Acme for core"
    assert entries["core-acme"]["location"] == str(core_cli.packages)


def test_what_a_package_says_of_itself_reaches_no_terminal_raw(core_cli):
    target = "core_spoof:Strategy" + SPOOF.replace("\r", "")  # which would end the line
    core_cli.install(
        "core-spoof", f"[core.strategies]\nspoof = {target}\n", summary=f"good {SPOOF}"
    )
    core_cli.install(
        f"core-{SPOOF}", "[core.strategies]\nddr = core_ddr:Ddr\n", folder="core_ddr-1.dist-info"
    )
    core_cli.install(
        "core-late",
        "[core.loggers]\nlate = core_late:Late\n",
        requires=(f"core-training==={SPOOF.split()[0]}9",),
    )
    lines = f"[core.loggers]\ngood = core_lines:Good\n{SPOOF}"
    core_cli.install("core-lines", lines, folder=f"core_lines-1{SPOOF}.dist-info")
    for command in (
        ["list-strategies", "--all"],
        ["list", "plugins", "--all"],
        ["list", "plugins", "--all", "--json"],
        ["doctor"],
    ):
        done = core_cli(*command)
        assert_tame(done.stdout, done.stderr)
        assert "spoof" in done.stdout
    assert r"\x1b[2K" in core_cli("describe", "spoof").stderr
    assert_tame(core_cli("explain", "--strategy", "spoof").stderr)
