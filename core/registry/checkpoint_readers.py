"""Finds the reader of what isn't the core's own, or says what to install for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

from core.contract.errors import CheckpointError, CoreError
from core.registry.offers import Status
from core.registry.registry import CHECKPOINT_READER_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from core.contract.checkpoint_reader import CheckpointReader

T = TypeVar("T")


def reader_of(head: bytes, path: str) -> CheckpointReader | None:
    """The installed reader that recognizes a file; None for a file of no known program.

    Args:
        head: the bytes with which the file begins.
        path: of the file, for messages.

    Raises:
        CheckpointError: the file is of a known program, and the plugin that reads it isn't here.
    """

    def ask(reader: CheckpointReader) -> CheckpointReader | None:
        if reader.recognizes(head):
            return reader
        return None

    found = _first(ask)
    if found is None and b"pytorch-lightning_version" in head:
        try:
            CHECKPOINT_READER_REGISTRY.offer("lightning")
        except CoreError as error:
            # it isn't installed, or is kept out: the error says how to have it
            raise CheckpointError(
                f"{path!r} was saved by PyTorch Lightning, and is read by a plugin. {error}"
            ) from error
    return found


def what_reads(path: str, names: Collection[str]) -> str | None:
    """The program that has written a folder with these names in it, and what reads it, by the
    installed readers.
    """

    def ask(reader: CheckpointReader) -> str | None:
        advice = reader.recognizes_folder(path, names)
        return advice and f"It looks like {reader.program}'s. {advice}"

    return _first(ask)


def _first(ask: Callable[[CheckpointReader], T | None]) -> T | None:
    """The first answer of an installed reader. One that fails was not asked for by name: a
    warning.
    """
    for offer in CHECKPOINT_READER_REGISTRY.offers():
        if offer.status is not Status.OK:
            continue
        try:
            found = ask(CHECKPOINT_READER_REGISTRY.create(offer))
        except Exception as error:
            message = f"The checkpoint reader {offer.spec.alias!r} of {offer} was left out. "
            warnings.warn(f"{message}{type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
        else:
            if found is not None:
                return found
    return None
