"""The walls that import-linter can't express."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN_FILES = sorted(ROOT.glob("plugins/*/core_*/**/*.py"))
BACKENDS = re.compile(r"deepspeed|colossalai|horovod|hivemind|bagua|fairscale|poptorch|habana|torch_xla", re.IGNORECASE)


def imported_names(path):
    """The dotted names that a file imports from `core`, such as `core.contract.Strategy`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "core")


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_plugin_imports_public_names_only(path):
    """Those in the `__all__` of `core` and of its public subpackages."""
    for dotted in imported_names(path):
        module, _, name = dotted.rpartition(".")
        public = importlib.import_module(module).__all__ if module.count(".") < 2 else ()
        assert name in public, f"{path}: {dotted} is not public. If a backend needs it, extend core.contract, for all"


def test_the_core_knows_no_backend():
    """One data table may name backends, for error messages; its file says `known` in its name."""
    rows = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(ROOT.glob("core/**/*.py"))
        if "known" not in path.stem
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BACKENDS.search(line)
    ]
    assert not rows, "\n".join(rows)


@pytest.mark.parametrize("name", ["core", "core.contract", "core.registry"])
def test_import_leaves_torch_and_plugins_alone(name):
    """The package and, but for the root, every module of it."""
    program = f"""
import importlib, pkgutil, sys

package = importlib.import_module({name!r})
if {name!r} != "core":
    for module in pkgutil.walk_packages(package.__path__, {name!r} + "."):
        importlib.import_module(module.name)
print(*(heavy for heavy in ("torch", "core_ddp", "core_deepspeed", "core_dp", "core_fsdp") if heavy in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
