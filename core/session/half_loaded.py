"""Modules and optimizers into which a load has failed: they hold parts of two states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from core.contract.errors import CheckpointError
from core.session import nested, state_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.session.session import Session

_MARKS: WeakKeyDictionary[object, tuple[str, list[tuple[ref[Any], int]]]] = WeakKeyDictionary()
"""By module or optimizer: the checkpoint, and its tensors with their versions then."""


def mark(session: Session, state: object, path: str) -> None:
    """This rank. Remember what a failed load of the checkpoint `path` may have overwritten."""
    for owner in _owners(session, state):
        if hasattr(owner, "parameters"):
            tensors = [*owner.parameters(), *owner.buffers()]
        else:
            entries = [entry for entry in owner.state.values() if isinstance(entry, dict)]
            tensors = [value for entry in entries for value in entry.values()]
        versions = [
            (ref(each), each._version)
            for each in tensors
            if hasattr(each, "_version") and not each.is_inference()
        ]
        _MARKS[owner] = (path, versions)


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
        path, tensors = _MARKS.get(owner, ("", []))
        # Tensors that are gone, or were changed since, have been made good by other means, such as
        # `load_state_dict`.
        for own, version in tensors:
            tensor = own()
            if tensor is not None and tensor._version == version:
                raise CheckpointError(
                    f"{type(owner).__name__} can't be {purpose}: the load of {path!r} failed when "
                    "it had overwritten it in part. Load another checkpoint into it, or make it "
                    "anew."
                )


def _owners(session: Session, value: Any) -> Iterator[Any]:
    if state_objects.is_module(session, value):
        yield session.handle_of(value).module
    elif state_objects.is_optimizer(session, value):
        yield value
    else:
        for item in nested.items_of(value):
            yield from _owners(session, item)
