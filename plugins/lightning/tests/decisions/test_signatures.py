"""Every difference between Lightning's signatures and core-lightning's has a reason; see
`signatures.py`.
"""

import fnmatch

import pytest


@pytest.fixture
def signatures(loaded):
    return loaded("signatures.py")


def test_each_difference_has_a_reason_and_each_reason_a_difference(signatures):
    found, config = signatures.read()
    decisions = config["decision"]
    by_decision = signatures.decided(found, decisions)
    assert by_decision.get(None, []) == [], (
        "write a decision into core_lightning/decisions/differences.toml, or mend it"
    )
    for index, each in enumerate(decisions):
        lines = by_decision.get(index, [])
        assert [pattern for pattern in each["what"] if not fnmatch.filter(lines, pattern)] == []
        assert each["here"]
        assert each["why"]
    assert found == signatures.MISSING.read_text(encoding="utf-8").splitlines(), (
        "run signatures.py table"
    )
    page = signatures.PAGE.read_text(encoding="utf-8")
    assert signatures.written(page, signatures.tables(found, config)) == page, (
        "run signatures.py table"
    )


def theirs(a, b=1, *, c=None):
    pass


@pytest.mark.parametrize(
    ("before", "here", "lines"),
    [
        (theirs, theirs, []),
        (theirs, lambda a, b=2: 0, ["f(b=1): here 2", "f(c=)"]),
        (theirs, lambda x, b=1, **more: 0, ["f(a=): here x"]),
        (lambda a, b=1: 0, lambda b=1, a=1: 0, ["f(a=): here 1", "f(): here b, a"]),
        (lambda a: 0, lambda a, new: 0, ["f(new): needed"]),
        (lambda *args: 0, lambda new: 0, []),
    ],
)
def test_what_differs_is_found(signatures, before, here, lines):
    assert (
        list(signatures.compared("f", signatures.arguments(before), signatures.arguments(here)))
        == lines
    )


def test_members_that_are_missing_are_found(signatures):
    members = {"fit": "value", "nothing": "value", "training": "setter"}
    record = {
        "names": ["pytorch.Trainer", "pytorch.Nothing"],
        "bases": [],
        "takes": None,
        "has": members,
    }
    missing = ["pytorch.Nothing", "pytorch.Trainer.nothing", "pytorch.Trainer.training = ..."]
    assert list(signatures.differences([record])) == missing
