"""READMEs of plugins list the traps of their libraries, and each cure and test is where its row
says.
"""

import re
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
TABLES = {
    page.parent: table.group(1).splitlines()
    for page in sorted(PLUGINS.glob("*/README.md"))
    if (
        table := re.search(
            r"^\| without the cure .*\n\| --- .*\n((\|.*\n?)+)",
            page.read_text("utf-8"),
            re.MULTILINE,
        )
    )
}


def test_six_plugins_have_such_a_table():
    assert len(TABLES) == 6


@pytest.mark.parametrize("plugin", TABLES, ids=lambda plugin: plugin.name)
def test_each_cure_and_its_test_are_there(plugin):
    row = re.compile(
        r"^\| .+ \| \[.+\]\((core_[\w/]+\.py)\) \| `(\w+)(?:::(\w+))?[^`]*` in "
        r"\[.+\]\((tests/\w+\.py)\).*\|$"
    )
    for line in TABLES[plugin]:
        cure, suite_or_test, method, tests = row.match(line).groups()
        places = [plugin / tests, *plugin.glob("core_*/conformance.py")]
        text = "".join(path.read_text("utf-8") for path in places if path.is_file())
        # A suite may inherit the method from one of the kit's.
        wanted = f"class {suite_or_test}(" if method else f"def {suite_or_test}("
        assert (plugin / cure).is_file(), line
        assert (plugin / tests).is_file(), line
        assert wanted in text, line
