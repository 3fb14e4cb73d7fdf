"""Errors carry objects, also from one process to another."""

import pickle

import pytest

from core import AliasConflictError, ConfigurationError, CoreError, Spec, UnknownAliasError, WorkerError
from core.contract import errors

SPEC = Spec("strategy", "acme", "core_acme:Acme", "core-acme")


@pytest.mark.parametrize(
    "error",
    [
        WorkerError("rank 1 died", rank=1, exit_code=-9),
        UnknownAliasError("no such thing", kind="strategy", alias="dpd", near=["ddp"]),
        AliasConflictError("two", specs=[SPEC, SPEC]),
        ConfigurationError("devices=0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling_whole(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_error_is_in_the_tree_of_the_docstring():
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, CoreError)]
    assert len(classes) > 15
    for item in classes:
        assert item.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", [ConfigurationError, errors.CheckpointNotFoundError, UnknownAliasError])
def test_the_text_of_an_error_moves_no_cursor(kind):
    arguments = {"kind": "", "alias": ""} if kind is UnknownAliasError else {}
    error = kind("no \x1b[2J\x9b1A\r\u202e\x85section\n\tof two lines", **arguments)
    assert str(error) == "no \\x1b[2J\\x9b1A\\r\\u202e\\x85section\n\tof two lines"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
