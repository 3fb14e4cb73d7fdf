"""Runs the tests that a change can reach, by what files import.

    python tests/changed.py COMMIT PYTEST...    # what differs from COMMIT; tox run -e changed [-- COMMIT]

A file is reached by those that import it, and by tests that name an alias of a plugin that it has.
All of a plugin reaches its own tests, a page reaches the programs of pages, and what no import
shows reaches all tests.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = [path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
SOURCES = [ROOT, *FOLDERS, ROOT / "tests", *(folder / "tests" for folder in FOLDERS)]
TARGET = re.compile(r"core[\w.]*:\w+")
COMMAND = re.compile(r'"([\w-]+)": \("(core\.cli\.\w+:\w+)"')
PROGRAMS_OF_PAGES = ["tests/examples"]


def main() -> None:
    """Run pytest in place of this process, on the files that are printed."""
    commit, *pytest = sys.argv[1:]
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.check_output([*git, "diff", "--name-only", commit], text=True).splitlines()
    changed += subprocess.check_output(
        [*git, "ls-files", "--others", "--exclude-standard"], text=True
    ).splitlines()
    tests = reached_tests(changed)
    print(*tests or ["no test"], sep="\n", flush=True)
    if tests:
        os.execvp(pytest[0], [*pytest, *(str(ROOT / test) for test in tests)])


def reached_tests(changed: list[str]) -> list[str]:
    """The files and folders of tests that these paths reach, all three relative to the root."""
    files = {*python_files()}
    tests, todo = set(), []
    for name in changed:
        path = ROOT / name
        folder, *inside = name.split("/")
        if folder == "plugins" and len(inside) > 1:
            tests.add(f"plugins/{inside[0]}/tests")
        if path in files:
            todo.append(path)
        elif path.suffix == ".md":
            tests.update(PROGRAMS_OF_PAGES)
        elif folder not in (
            "plugins",
            ".github",
            ".ci",
            "docs",
            "changelog",
            "benchmarks",
            "examples",
        ):
            return ["tests", "plugins"]
    reached = set(todo)
    while todo:
        new = importers()[todo.pop()] - reached
        reached |= new
        todo += new
    names = (
        path.relative_to(ROOT)
        for path in reached
        if path.name.startswith("test_") and path.parent.name != "static"
    )
    tests.update(
        str(name) for name in names if not any(str(folder) in tests for folder in name.parents)
    )
    return sorted(tests)


@cache
def importers() -> dict[Path, set[Path]]:
    """By file those that import it."""
    found = defaultdict(set)
    for path in python_files():
        for imported in imports_of(path):
            found[imported].add(path)
    return found


@cache
def python_files() -> list[Path]:
    """The files of core, the plugins and all tests."""
    return [
        path
        for place in ("core", "plugins", "tests")
        for path in sorted((ROOT / place).rglob("*.py"))
    ]


def imports_of(path: Path) -> set[Path]:
    """The files that a file imports anywhere in it, and those whose aliases it names."""
    found: set[Path] = set()
    is_test = "tests" in path.relative_to(ROOT).parts or path.name == "conformance.py"
    for node in running_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            found = found.union(*(homes_of(alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            found = found.union(*(homes_of(node.module or "", alias.name) for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = aliases().get(node.value, node.value) if is_test else node.value
            if TARGET.fullmatch(target) and (is_test or not target.startswith("core.cli")):
                found |= homes_of(*target.split(":"))
    return found - {path}


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree but for what only type checkers run."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            todo += ast.iter_child_nodes(node)


@cache
def aliases() -> dict[str, str]:
    """The target of each alias of a plugin in this repository, and of each command of core's
    own.
    """
    found = dict(COMMAND.findall((ROOT / "core/registry/builtins.py").read_text(encoding="utf-8")))
    for folder in FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for group in project.get("entry-points", {}).values():
            found |= group
    return found


@cache
def homes_of(module: str, name: str = "") -> frozenset[Path]:
    """The file that has a module, or a name of it, and those from which it has that name, most when
    it is used.
    """
    for source in SOURCES:
        path = source.joinpath(*module.split("."))
        if name and (inner := file_at(path / name)) is not None:
            return frozenset([inner])
        if (file := file_at(path)) is not None:
            return frozenset([file]) | origins_of(file, name)
    return frozenset()


def file_at(path: Path) -> Path | None:
    """The file of a module or package."""
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)


def origins_of(file: Path, name: str) -> frozenset[Path]:
    """The files from which a file of ours has a name that it hands on."""
    nodes = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ImportFrom)]
    own = [node for node in nodes if node.module and node.module.startswith("core")]
    named = [
        homes_of(node.module, name) for node in own if name in {alias.name for alias in node.names}
    ]
    stars = [
        origins_of(each, name)
        for node in own
        if node.names[0].name == "*"
        for each in homes_of(node.module)
    ]
    return frozenset().union(*named, *stars)


if __name__ == "__main__":
    main()
