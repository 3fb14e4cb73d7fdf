"""What finds a public bug is what the table of the museum says; without the bug nothing is found."""

from pathlib import Path

import pytest
from museum.exhibits import EXHIBITS
from museum.visit import is_right_without, what_finds

_TABLE = (Path(__file__).parent / "museum" / "museum.md").read_text(encoding="utf-8")
_ROWS = [line.split(" | ") for line in _TABLE.splitlines() if line.startswith("| `")]
_FOUND_BY = {first.strip("|` "): last.strip("| ") for first, *_, last in _ROWS}
_BY_WHAT_IS_REPLACED = {
    (one.make, str(one.mesh), str(one.options)): one for one in EXHIBITS if one.fault is not None
}


def test_each_bug_has_a_thread_and_a_row_of_its_own():
    assert list(_FOUND_BY) == [one.name for one in EXHIBITS]
    assert len({one.thread for one in EXHIBITS}) == len(EXHIBITS) >= 26
    assert list(_FOUND_BY.values()).count("types") >= 24
    assert set(_FOUND_BY.values()) <= {"types", "a check", "kit"}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda one: one.name)
def test_a_bug_is_found(exhibit):
    found, told = what_finds(exhibit)
    assert found == _FOUND_BY[exhibit.name], told


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("exhibit", _BY_WHAT_IS_REPLACED.values(), ids=lambda one: one.name)
def test_nothing_is_found_without_it(exhibit):
    assert is_right_without(exhibit)
