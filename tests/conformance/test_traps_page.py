"""docs/traps.md lists the traps of libraries, and each cure and test stand where it says."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "by_hand"))

from traps import TRAPS  # noqa: E402
from without_cures import source_of, with_table  # noqa: E402


def test_each_cure_and_its_test_are_there():
    for trap in TRAPS:
        assert source_of(trap).read_text(encoding="utf-8").count(trap.cure) == 1, trap
        file, *names = re.sub(r"\[.*", "", trap.test).split("::")
        tests = (ROOT / "plugins" / trap.plugin / "tests" / file).read_text(encoding="utf-8")
        assert f"def {names[-1]}(" in tests or names[0].startswith("Test"), trap


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "python tests/by_hand/without_cures.py --write docs/traps.md"
