"""Every difference between Lightning's signatures and core-lightning's has a reason; see `signatures.py`."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def signatures(installed):
    spec = importlib.util.spec_from_file_location("lightning_signatures", HERE / "signatures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_difference_has_a_reason_and_each_reason_a_difference(signatures):
    found, config = signatures.read()
    decisions = config["decision"]
    by_decision = signatures.decided(found, decisions)
    assert by_decision.get(None, []) == [], "write a decision into core_lightning/differences.toml, or mend it"
    idle = [
        pattern
        for index, each in enumerate(decisions)
        for pattern in each["what"]
        if not any(signatures.fits(line, [pattern]) for line in by_decision.get(index, ()))
    ]
    assert idle == []
    assert all(each[key] for each in decisions for key in ("here", "why"))
    assert found == signatures.MISSING.read_text(encoding="utf-8").splitlines(), "run signatures.py table"
    page = signatures.PAGE.read_text(encoding="utf-8")
    assert signatures.written(page, signatures.tables(found, config)) == page, "run signatures.py table"


def test_what_differs_is_found(signatures):
    theirs = ["a", "b=1", "*", "c=None"]
    assert list(signatures.compared("f", theirs, theirs)) == []
    assert list(signatures.compared("f", theirs, ["a", "b=2"])) == ["f(b=1): here 2", "f(c=)"]
    assert list(signatures.compared("f", theirs, ["x", "b=1", "**more"])) == ["f(a=): here x"]
    assert list(signatures.compared("f", ["a", "b=1"], ["b=1", "a"])) == ["f(): here b, a"]
    assert list(signatures.compared("f", ["a"], ["a", "new"])) == ["f(new): needed"]
    assert list(signatures.compared("f", ["*args"], ["new"])) == []
    named = {"names": ["pytorch.Trainer", "pytorch.Nothing"], "bases": [], "takes": None}
    record = [{**named, "has": {"fit": "value", "nothing": "value", "training": "setter"}}]
    assert list(signatures.differences(record)) == [
        "pytorch.Nothing",
        "pytorch.Trainer.nothing",
        "pytorch.Trainer.training = ...",
    ]
    decisions = [{"what": ["pytorch.Trainer.n*"]}]
    lines = ["pytorch.Trainer.nothing", "pytorch.Trainer.other"]
    assert signatures.decided(lines, decisions) == {0: lines[:1], None: lines[1:]}
