"""Errors of a program, raised or noted."""

import pytest

from core import ModuleError
from core.contract import Proof, Remark, doubt, follows, refuse, users_line


def test_outside_of_a_proof_errors_are_raised_and_doubts_are_none():
    with pytest.raises(ModuleError, match="wrong"):
        refuse(ModuleError("wrong"))
    doubt("unseen")
    assert not follows("tensor")


def test_within_a_proof_each_thing_is_noted_once():
    with Proof() as proof:
        for _ in range(2):
            refuse(ModuleError("first"), axis="tensor", place="model.py:3")
            refuse(ModuleError("second"), axis="context", place="model.py:3")
            refuse(ModuleError("what follows from the first"), axis="tensor", place="model.py:3")
            doubt("third", place="model.py:5")
        assert follows("tensor")
    assert proof.findings == [
        Remark("first", "model.py:3", "tensor"),
        Remark("second", "model.py:3", "context"),
        Remark("third", "model.py:5", is_wrong=False),
    ]
    assert [*proof.axes] == ["tensor"]


def test_the_place_is_the_users_line_by_default():
    with Proof() as proof:
        refuse(ModuleError("wrong"))
    assert "test_proof.py:" in proof.findings[0].place
    assert users_line([]) == ""
