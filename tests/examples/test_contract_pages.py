"""docs/contracts and docs/hooks.md say of every public member of each base class who calls it, and
name no other.
"""

import re
from pathlib import Path

import click
import pytest

import core
from core_testing import programs

FOLDER = Path(__file__).parents[2] / "docs" / "contracts"
BASES = {
    "strategy": core.Strategy,
    "accelerator": core.Accelerator,
    "precision": core.Precision,
    "checkpoint-io": core.CheckpointIO,
    "checkpoint-reader": core.CheckpointReader,
    "cluster-environment": core.ClusterEnvironment,
    "launcher": core.Launcher,
    "logger": core.Logger,
    "command": click.Command,
    "hooks": core.Callback,
}
TABLE = re.compile(r"^\| member \|.*\n\|[ |-]+\n((?:\|.*\n)+)", re.MULTILINE)
# these say why not
PROVEN = sorted(BASES.keys() - {"checkpoint-reader", "launcher", "command", "hooks"})


def read(name):
    folder = FOLDER.parent if name == "hooks" else FOLDER
    return (folder / f"{name}.md").read_text(encoding="utf-8")


def test_every_contract_has_a_page():
    kinds = {kind.name.replace(" ", "-") for kind in core.KINDS.values()}
    assert BASES.keys() == kinds | {"hooks"}
    assert kinds == {path.stem for path in FOLDER.glob("*.md")}


@pytest.mark.parametrize("name", BASES)
def test_a_page_names_every_public_member_and_no_other(name):
    def members_on(page):
        """The first column of the tables of members, each name once."""
        cells = [row.split("|")[1] for table in TABLE.findall(page) for row in table.splitlines()]
        return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]

    def public_members(base):
        own = [kind for kind in base.__mro__ if kind.__module__.startswith(("core.", "core_"))]
        names = {
            name for kind in own for name in (*vars(kind), *vars(kind).get("__annotations__", {}))
        }
        return {name for name in names if not name.startswith("_")}

    members = members_on(read(name))
    assert sorted(members) == sorted(public_members(BASES[name]))


@pytest.mark.parametrize("name", BASES)
def test_a_page_says_which_must_be_overridden(name):
    rows = [
        row
        for table in TABLE.findall(read(name))
        for row in table.splitlines()
        if row.split("|")[2] == " must "
    ]
    musts = {member for row in rows for member in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert musts == set(getattr(BASES[name], "__abstractmethods__", ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVEN)
def test_the_smallest_example_passes_its_suite(name, tmp_path):
    """The page's example, registered in the process, and the class under "Proof"."""
    program = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    example, *_, proof = program.findall(read(name))
    (tmp_path / "test_page.py").write_text(f"{example}\n\n{proof}", encoding="utf-8")
    command = [*programs.PYTEST, "-q", "-p", "no:cacheprovider", "test_page.py"]
    done = programs.run(command, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* passed", done.stdout)
