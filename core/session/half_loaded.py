"""Modules and optimizers into which a load has failed: they hold parts of two states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from core.contract.errors import CheckpointError
from core.session import nested, state_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.session.session import Session

_MARKS: WeakKeyDictionary[object, tuple[str, list[tuple[int, int]]]] = WeakKeyDictionary()
"""By module or optimizer: the checkpoint, and the identities and versions of its tensors then."""


def mark(session: Session, state: object, path: str) -> None:
    """This rank. Remember what a failed load of the checkpoint `path` may have overwritten."""
    for owner in _owners(session, state):
        _MARKS[owner] = (path, _versions(owner))


def unmark(session: Session, target: object) -> None:
    """This rank. Modules and optimizers were loaded whole."""
    for owner in _owners(session, target):
        _MARKS.pop(owner, None)


def refuse_half_loaded(session: Session, purpose: str, state: object = None) -> None:
    """All ranks. Refuse to go on with modules and optimizers into which a load has failed: they
    hold parts of two states.

    Args:
        session: that has set them up.
        purpose: says with what, as in `"trained"`.
        state: that has them at any place; None for all that were set up.

    Raises:
        CheckpointError: there are some.
    """
    if not _MARKS:
        return
    if state is None:
        state = [*(handle.module for handle in session.handles), *session.strategy.optimizers]
    for owner in _owners(session, state):
        path, versions = _MARKS.get(owner, ("", None))
        # What was changed since has been made good by other means, such as `load_state_dict`.
        if versions == _versions(owner):
            raise CheckpointError(
                f"{type(owner).__name__} can't be {purpose}: the load of {path!r} failed when it "
                "had overwritten it in part. Load another checkpoint into it, or make it anew."
            )


def _owners(session: Session, value: Any) -> Iterator[object]:
    if state_objects.is_module(session, value):
        yield session.handle_of(value).module
    elif state_objects.is_optimizer(session, value):
        yield value
    else:
        for item in nested.items_of(value):
            yield from _owners(session, item)


def _versions(owner: Any) -> list[tuple[int, int]]:
    """Identity of each tensor, and the number of changes that it has seen."""
    if hasattr(owner, "parameters"):
        tensors = [*owner.parameters(), *owner.buffers()]
    else:
        entries = [entry for entry in owner.state.values() if isinstance(entry, dict)]
        tensors = [value for entry in entries for value in entry.values()]
    known = (value for value in tensors if hasattr(value, "_version") and not value.is_inference())
    return [(id(value), value._version) for value in known]
