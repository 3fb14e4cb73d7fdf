"""The size of the code, as a reader parses it. A number may fall; one that grows is a decision."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from support.syntax_nodes import syntax_nodes

ROOT = Path(__file__).parents[2]
NODES = {
    "core": 255_920,
    "plugins/colossalai": 11_600,
    "plugins/deepspeed": 23_770,
    "plugins/fsdp": 15_170,
    "plugins/lightning": 47_770,
    "plugins/parallel": 77_170,
    "plugins/plan": 28_490,
    "plugins/report": 10_840,
    "plugins/resilience": 21_650,
    "plugins/testing": 61_100,
    "plugins/transformers": 10_060,
    "plugins": 425_490,
}
"""Of core, all plugins, and each plugin that has more than 10,000. What is added takes as much out."""
MOST_NODES = 10_000
DENSE = {
    "core": {"ternaries": 36.9, "walruses": 8.7},
    "plugins": {"ternaries": 29.0, "walruses": 5.9},
}
"""In 10,000 nodes."""
DATA = {"core": 320, "plugins": 300}
"""Lines of JSON."""
ANY = 1_050
"""Uses of `Any` in core."""


def sources(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files if "tests" not in file.parts)
    return [text for text in texts if text]


def counts_of(folder):
    return sum((syntax_nodes(text) for text in sources(folder)), Counter())


@pytest.mark.parametrize("folder", NODES)
def test_code_grows_by_decision_only(folder):
    assert counts_of(folder)["nodes"] <= NODES[folder]


def test_each_large_plugin_has_a_limit():
    folders = [str(path.parent.relative_to(ROOT)) for path in ROOT.glob("plugins/*/pyproject.toml")]
    large = [folder for folder in folders if counts_of(folder)["nodes"] > MOST_NODES]
    assert set(large) <= {*NODES}


@pytest.mark.parametrize("folder", DENSE)
def test_expressions_within_expressions_are_few(folder):
    counts = counts_of(folder)
    shares = {name: 10_000 * counts[name] / counts["nodes"] for name in DENSE[folder]}
    assert {name: share for name, share in shares.items() if share > DENSE[folder][name]} == {}


@pytest.mark.parametrize("folder", DATA)
def test_data_is_no_way_around(folder):
    files = [file for file in (ROOT / folder).rglob("*.json") if file.name != "card.json"]
    texts = [file.read_text(encoding="utf-8") for file in files if "tests" not in file.parts]
    assert sum(len(text.splitlines()) for text in texts) <= DATA[folder]


def test_types_are_said():
    names = (node for text in sources("core") for node in ast.walk(ast.parse(text)))
    assert sum(isinstance(node, ast.Name) and node.id == "Any" for node in names) <= ANY
