"""What a distribution declares: the requirements of its tests, and its names in core's errors."""

import ast
import runpy
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from core.registry import known_aliases

ROOT = Path(__file__).parents[2]


def test_the_table_is_made_from_the_plugins():
    script = runpy.run_path(str(ROOT / "plugins" / "known_plugins.py"))
    assert script["TABLE"].read_text(encoding="utf-8") == script["text"](), (
        "run `python plugins/known_plugins.py`"
    )


def imported(path):
    """The first parts of the names that a file imports or skips without, and the package that gives
    core a name.
    """
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    sources = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    names += [node.module for node in sources]
    used = [f"{node.module}.{alias.name}" for node in sources for alias in node.names]
    attributes = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    used += [f"{node.value.id}.{node.attr}" for node in attributes]
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip"
    ]
    names += [ast.literal_eval(node.args[0]) for node in calls]
    given = [known_aliases("export").get(name.lower(), "") for name in used]
    return {name.partition(".")[0].replace("-", "_") for name in [*names, *filter(None, given)]}


def test_a_plugins_tests_import_no_helper_of_others():
    """Its sdist has its own tests and `tests/support`: nothing else of the checkout."""
    folders = [ROOT / "tests", *ROOT.glob("plugins/*/tests")]
    modules = {
        path.stem: path
        for folder in folders
        for path in folder.iterdir()
        if path.suffix in ("", ".py")
    }
    for folder in folders[1:]:
        own = {path.stem for path in folder.iterdir()} | {"support", "conftest"}
        for path in folder.rglob("*.py"):
            foreign = imported(path) & modules.keys() - own - sys.stdlib_module_names
            assert not foreign, f"{path} imports {', '.join(foreign)}: move that into tests/support"


def test_a_plugins_extra_has_what_its_tests_import():
    """With core-testing, which has pytest: `pip install -e ".[test]"` in its sdist is enough to run
    them.
    """

    def project(folder):
        """The table `project` of a distribution's source."""
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    core, kit = (project(ROOT / folder)["dependencies"] for folder in (".", "plugins/testing"))
    by_other_names = {"sklearn": "scikit_learn", "yaml": "pyyaml"}
    not_declared = {
        "dp": {"sim_device"},  # of tests/downstream; without it they are skipped
        "hpu": {"core_deepspeed"},  # for one test, which is skipped without it
        "lightning": {"lightning"},  # the name that core-lightning itself gives to programs
    }
    for folder in ROOT.glob("plugins/*/tests"):
        declared, plugin = project(folder.parent), folder.parent.name
        needed = declared["optional-dependencies"]["test"]
        assert plugin == "testing" or "core-testing>=0.1,<0.2" in needed, plugin
        names = {
            Requirement(line).name for line in [*core, *kit, *declared["dependencies"], *needed]
        }
        there = (
            {name.replace("-", "_") for name in names}
            | {"core", "support"}
            | sys.stdlib_module_names
        )
        there |= {path.stem for path in (*folder.rglob("*"), *folder.parent.glob("core_*"))}
        found = {
            by_other_names.get(name, name)
            for path in folder.rglob("*.py")
            for name in imported(path)
        }
        assert found - there == not_declared.get(plugin, set()), (
            f"the extra `test` of core-{plugin}"
        )
