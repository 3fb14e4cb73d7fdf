"""Modules and optimizers into which a load has failed: they hold parts of two states, and can't be
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from core.contract.errors import CheckpointError
from core.session import state_objects
from core.session.nested import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from core.session.session import Session

_MARKS: WeakKeyDictionary[object, tuple[str, list[tuple[ref[Tensor], int]]]] = WeakKeyDictionary()
"""By module or optimizer: the checkpoint, and each tensor with the number of changes that it had
seen by then.
"""


def mark(session: Session, state: Any, path: str) -> None:
    """This rank. Remember what a failed load of the checkpoint `path` may have overwritten."""
    for owner in _owners(session, state):
        _MARKS[owner] = (path, [(ref(tensor), tensor._version) for tensor in _tensors_of(owner)])


def forget(session: Session, target: object) -> None:
    """This rank. A module or optimizer was loaded whole."""
    for owner in _owners(session, target):
        _MARKS.pop(owner, None)


def refuse(session: Session, state: Any, purpose: str) -> None:
    """This rank. Refuse to use modules and optimizers that are half loaded.

    Args:
        session: that knows them.
        state: with them at any place.
        purpose: says for what, as in `"saved"`.

    Raises:
        CheckpointError: one is.
    """
    if not _MARKS:
        return
    for owner in _owners(session, state):
        path, tensors = _MARKS.get(owner, ("", []))
        # Tensors that are gone, or were changed since, have been made good by other means, such as
        # `load_state_dict`.
        if any(
            (tensor := own()) is not None and tensor._version == version for own, version in tensors
        ):
            raise CheckpointError(
                f"{type(owner).__name__} can't be {purpose}: the load of {path!r} failed when it "
                "had overwritten it in part. Load another checkpoint into it, or make it anew."
            )


def refuse_half_loaded(session: Session, purpose: str) -> None:
    """All ranks. Refuse to go on with modules and optimizers into which a load has failed.

    Args:
        session: that has set them up.
        purpose: says with what, as in `"trained"`.

    Raises:
        CheckpointError: there are some.
    """
    refuse(
        session,
        [*(handle.module for handle in session.handles), *session.strategy.optimizers],
        purpose,
    )


def _owners(session: Session, value: Any) -> Iterator[object]:
    if state_objects.is_module(session, value):
        yield session.handle_of(value).module
    elif state_objects.is_optimizer(session, value):
        yield value
    elif isinstance(value, dict | list | tuple):
        items = [*value.values()] if isinstance(value, dict) else value
        if not PLAIN.issuperset(map(type, items)):
            for item in items:
                yield from _owners(session, item)


def _tensors_of(owner: Any) -> Iterator[Tensor]:
    if hasattr(owner, "parameters"):
        tensors = [*owner.parameters(), *owner.buffers()]
    else:
        tensors = [
            value
            for entry in owner.state.values()
            if isinstance(entry, dict)
            for value in entry.values()
        ]
    yield from (
        value for value in tensors if hasattr(value, "_version") and not value.is_inference()
    )
