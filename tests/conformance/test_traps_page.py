"""READMEs of plugins list the traps of their libraries, and each cure and test stand where they say."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "by_hand"))

from traps import TRAPS  # noqa: E402
from without_cures import readmes, source_of, with_table  # noqa: E402


def test_each_cure_and_its_test_are_there():
    for trap in TRAPS:
        assert source_of(trap).read_text(encoding="utf-8").count(trap.cure) == 1, trap
        file, *names = re.sub(r"\[.*", "", trap.test).split("::")
        tests = (ROOT / "plugins" / trap.plugin / "tests" / file).read_text(encoding="utf-8")
        assert f"def {names[-1]}(" in tests or names[0].startswith("Test"), trap


@pytest.mark.parametrize("page", readmes(), ids=lambda page: page.parent.name)
def test_the_readme_has_the_table(page):
    text = page.read_text(encoding="utf-8")
    assert with_table(text, readmes()[page]) == text, "python tests/by_hand/without_cures.py --write"
