"""Every difference between Lightning's signatures and core-lightning's has a reason; see `signatures.py`."""

import fnmatch

import pytest


@pytest.fixture
def signatures(loaded):
    return loaded("signatures.py")


def test_each_difference_has_a_reason_and_each_reason_a_difference(signatures):
    found, config = signatures.read()
    decisions = config["decision"]
    by_decision = signatures.decided(found, decisions)
    assert by_decision.get(None, []) == [], "write a decision into core_lightning/differences.toml, or mend it"
    for index, each in enumerate(decisions):
        lines = by_decision.get(index, [])
        assert [pattern for pattern in each["what"] if not fnmatch.filter(lines, pattern)] == []
        assert each["here"]
        assert each["why"]
    assert found == signatures.MISSING.read_text(encoding="utf-8").splitlines(), "run signatures.py table"
    page = signatures.PAGE.read_text(encoding="utf-8")
    assert signatures.written(page, signatures.tables(found, config)) == page, "run signatures.py table"


THEIRS = ["a", "b=1", "*", "c=None"]


@pytest.mark.parametrize(
    ("theirs", "ours", "lines"),
    [
        (THEIRS, THEIRS, []),
        (THEIRS, ["a", "b=2"], ["f(b=1): here 2", "f(c=)"]),
        (THEIRS, ["x", "b=1", "**more"], ["f(a=): here x"]),
        (["a", "b=1"], ["b=1", "a"], ["f(): here b, a"]),
        (["a"], ["a", "new"], ["f(new): needed"]),
        (["*args"], ["new"], []),
    ],
)
def test_what_differs_is_found(signatures, theirs, ours, lines):
    assert list(signatures.compared("f", theirs, ours)) == lines


def test_members_that_are_missing_are_found(signatures):
    members = {"fit": "value", "nothing": "value", "training": "setter"}
    record = {"names": ["pytorch.Trainer", "pytorch.Nothing"], "bases": [], "takes": None, "has": members}
    missing = ["pytorch.Nothing", "pytorch.Trainer.nothing", "pytorch.Trainer.training = ..."]
    assert list(signatures.differences([record])) == missing
