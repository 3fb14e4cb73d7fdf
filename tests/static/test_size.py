"""The size of the code, as a reader parses it. A number may fall; one that grows is a decision."""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

from support.syntax_nodes import syntax_nodes

ROOT = Path(__file__).parents[2]
NODES = {
    "core": 155_257,
    "plugins/colossalai": 11_550,
    "plugins/deepspeed": 23_700,
    "plugins/fsdp": 15_330,
    "plugins/lightning": 43_515,
    "plugins/parallel": 83_188,
    "plugins/plan": 32_117,
    "plugins/report": 10_850,
    "plugins/resilience": 21_660,
    "plugins/testing": 61_460,
    "plugins/training": 93_000,
    "plugins/transformers": 10_060,
    "plugins": 503_128,
}
"""Of core-base, all plugins, and each plugin that has more than 10,000. What is added takes as much
out.
"""
DENSE = {
    "core": {"ternaries": 4.5, "walruses": 0.5},
    "plugins/training": {"ternaries": 6.0, "walruses": 0.5},
    "plugins": {"ternaries": 17.9, "walruses": 3.6},
}
"""In 10,000 nodes."""
DATA = {"core": 320, "plugins": 300}
"""Lines of JSON."""


def sources(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files if "tests" not in file.parts)
    return [text for text in texts if text]


@functools.cache
def counts_of(folder):
    return sum((syntax_nodes(text) for text in sources(folder)), Counter())


@pytest.mark.parametrize("folder", NODES)
def test_code_grows_by_decision_only(folder):
    assert counts_of(folder)["nodes"] <= NODES[folder]


def test_each_large_plugin_has_a_limit():
    folders = [str(path.parent.relative_to(ROOT)) for path in ROOT.glob("plugins/*/pyproject.toml")]
    large = [folder for folder in folders if counts_of(folder)["nodes"] > 10_000]
    assert set(large) <= {*NODES}


@pytest.mark.parametrize("folder", DENSE)
def test_expressions_within_expressions_are_few(folder):
    counts = counts_of(folder)
    shares = {name: 10_000 * counts[name] / counts["nodes"] for name in DENSE[folder]}
    assert {name: share for name, share in shares.items() if share > DENSE[folder][name]} == {}


@pytest.mark.parametrize("folder", DENSE)
def test_no_expression_hides_a_statement(folder):
    """A loop over a ternary, a ternary within one, a list within a list, two conditions of one loop."""

    def hides(node):
        match node:
            case ast.For(iter=ast.IfExp()) | ast.comprehension(iter=ast.IfExp()):
                return True
            case ast.comprehension(ifs=[_, _, *_]):
                return True
            case ast.Starred(value=ast.List() | ast.Tuple() | ast.IfExp()):
                return True
            case ast.IfExp():
                below = (part for child in ast.iter_child_nodes(node) for part in ast.walk(child))
                return any(isinstance(part, ast.IfExp) for part in below)
        return False

    hidden = [node for text in sources(folder) for node in ast.walk(ast.parse(text)) if hides(node)]
    assert [ast.unparse(node) for node in hidden] == []


@pytest.mark.parametrize("folder", DATA)
def test_data_is_no_way_around(folder):
    files = [file for file in (ROOT / folder).rglob("*.json") if file.name != "card.json"]
    texts = [file.read_text(encoding="utf-8") for file in files if "tests" not in file.parts]
    assert sum(len(text.splitlines()) for text in texts) <= DATA[folder]


def test_types_are_said():
    names = (node for text in sources("core") for node in ast.walk(ast.parse(text)))
    assert sum(isinstance(node, ast.Name) and node.id == "Any" for node in names) <= 690
