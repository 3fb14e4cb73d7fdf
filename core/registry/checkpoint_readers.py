"""Finds the reader of a file that isn't the core's own, or says what to install for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError, CoreError
from core.registry.known_aliases import KNOWN_FORMATS
from core.registry.offers import Status
from core.registry.registry import CHECKPOINT_READER_REGISTRY

if TYPE_CHECKING:
    from core.contract.checkpoint_reader import CheckpointReader


def reader_of(head: bytes, path: str) -> CheckpointReader | None:
    """The installed reader that recognizes a file; None for a file of no known program.

    Args:
        head: the bytes with which the file begins.
        path: of the file, for messages.

    Raises:
        CheckpointError: the file is of a known program, and the plugin that reads it isn't here.
    """
    for offer in CHECKPOINT_READER_REGISTRY.offers():
        if offer.status is Status.OK and (reader := _asked(offer, head)) is not None:
            return reader
    for mark, (program, alias) in KNOWN_FORMATS.items():
        if mark in head:
            try:
                CHECKPOINT_READER_REGISTRY.offer(alias)
            except CoreError as error:  # it isn't installed, or is kept out: the error says how to have it
                raise CheckpointError(f"{path!r} was saved by {program}, and is read by a plugin. {error}") from error
    return None


def _asked(offer: Any, head: bytes) -> CheckpointReader | None:
    """The reader of an offer, if it recognizes the file. One that fails was not asked for by name: a warning."""
    try:
        reader: CheckpointReader = CHECKPOINT_READER_REGISTRY.create(offer)
        return reader if reader.recognizes(head) else None
    except Exception as error:
        message = f"The checkpoint reader {offer.spec.alias!r} of {offer} was left out. {type(error).__name__}: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
