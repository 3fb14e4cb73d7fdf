"""Errors carry objects, also from one process to another."""

import pickle

import pytest

from core import (
    AliasConflictError,
    ConfigurationError,
    CoreError,
    HangError,
    Spec,
    UnknownAliasError,
    WorkerError,
)
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
    classes = [
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, CoreError)
    ]
    assert len(classes) > 15
    for item in classes:
        assert item.__name__ in errors.__doc__


@pytest.mark.parametrize(
    "kind", [ConfigurationError, errors.CheckpointNotFoundError, UnknownAliasError]
)
def test_the_text_of_an_error_moves_no_cursor(kind):
    arguments = {"kind": "", "alias": ""} if kind is UnknownAliasError else {}
    error = kind("no \x1b[2J\x9b1A\r\u202e\x85section\n\tof two lines", **arguments)
    assert str(error) == "no \\x1b[2J\\x9b1A\\r\\u202e\\x85section\n\tof two lines"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("foreign", ["x", "\x1b"])
def test_the_text_of_an_error_has_a_length_whatever_it_quotes(foreign):
    error = ConfigurationError(
        f"expected a name, and this came: {foreign * 100_000}. Choose a shorter one."
    )
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert 2900 < len(str(one)) <= 3000
        assert str(one).startswith("expected a name, and this came: ")
        assert " ... " in str(one)
        assert str(one).endswith(". Choose a shorter one.")


def test_the_text_of_an_error_that_is_not_long_or_has_a_line_for_each_rank_is_whole():
    assert str(ConfigurationError("y" * 3000)) == "y" * 3000
    assert str(HangError("y" * 100_000, absent=[1])) == "y" * 100_000
