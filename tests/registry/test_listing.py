"""Everything there is, in rows, without an import."""

import subprocess
import sys
from pathlib import Path

from core.contract.kinds import KINDS
from core.registry import CORE, HOOKS, PRELUDES, Status, listing
from support.fake_distributions import make_distribution


def test_one_row_for_everything(site, tmp_path, manager, monkeypatch):
    def install(name, text, path=site, **options):
        make_distribution(path, name, entry_points_text=f"[core.loggers]\n{text}\n", **options)

    install("core-fine", "fine = core_fine:Fine", summary="A fine logger")
    install("core-one", "both = core_one:One")
    install("core-two", "both = core_two:Two")
    install("core-old", "old = core_old:Old", requires=["core-base<0.0.1"])
    install("core-bad", "bad = nothing to import")
    install("core-evil", "csv = core_evil:Evil")
    install("core-off", "off = core_off:Off")
    install("core-line", "no line")
    install("core-fine", "fine = core_fine:Fine", tmp_path / "later", version="0.9")
    sys.path.append(str(tmp_path / "later"))
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "core-off")

    rows = [row for row in listing("logger", manager=manager()) if row.provider != CORE]
    assert [(row.alias, row.provider, row.status) for row in rows] == [
        ("bad", "core-bad", Status.BROKEN),
        ("both", "core-one", Status.CONFLICT),
        ("both", "core-two", Status.CONFLICT),
        ("csv", "core-evil", Status.RESERVED),
        ("fine", "core-fine", Status.OK),
        ("off", "core-off", Status.BLOCKED),
        ("old", "core-old", Status.INCOMPATIBLE),
        ("", "core-line", Status.BROKEN),
        ("", "core-fine", Status.SHADOWED),
    ]
    details = {(row.alias, row.provider): row.detail for row in rows}
    assert (
        details["both", "core-one"] == "also offered by core-two; 'core-one:both' chooses this one"
    )
    assert details["csv", "core-evil"] == "the alias belongs to core"
    assert details["off", "core-off"] == "CORE_DISABLE_PLUGINS names 'core-off'"
    assert details["old", "core-old"].startswith(
        "it requires core-base<0.0.1, and this is core-base "
    )
    (fine,) = [row for row in rows if row.status is Status.OK]
    assert (fine.kind, fine.target, fine.version, fine.summary, fine.location, fine.detail) == (
        "logger",
        "core_fine:Fine",
        "1.0",
        "A fine logger",
        str(site),
        "",
    )


def test_all_kinds(site, manager):
    groups = "[core.hooks]\nacme = core_acme\n[core.preludes]\nacme = core_acme:f\n"
    # the one kind of which nothing is built in
    groups += "[core.checkpoint_readers]\nacme = core_acme:Reader\n"
    make_distribution(site, "core-acme", entry_points_text=groups)
    rows = listing(manager=manager())
    assert {row.kind for row in rows} == {*KINDS, HOOKS, PRELUDES}
    assert {row.status for row in rows} == {Status.OK}


def test_import_does_not_look_at_installed_packages():
    root = Path(__file__).parents[2]
    program = """
import sys
import core.registry
print("importlib_metadata" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.split() == ["False"]
