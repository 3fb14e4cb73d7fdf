"""All ranks write one checkpoint together, which exists whole or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form import dates
from core.checkpoint.folder.writer import PartWriter
from core.checkpoint.format.manifest import FileEntry, Manifest
from core.checkpoint.joint.agreement import gather_results, on_rank_zero, together
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from core.checkpoint.folder.folder import Folder
    from core.contract.checkpoint_io import Collectives

    Written = tuple[list[tuple[str, int, bytes]], int]
    """The news of a part for rank 0, in few bytes: of each file the end of its name, its size and
    digest; the number of elements that were written."""

_CURE = "Save DTensors, or ShardedLeafs whose chunks lie side by side."


def write(folder: Folder, state: dict[str, Any], collectives: Collectives) -> None:
    """All ranks. Each writes its part, and rank 0 what makes the parts a checkpoint.

    Args:
        folder: where to; what is there is replaced.
        state: as for `DistributedCheckpointIO.save_checkpoint`.
        collectives: the ranks that call this together.

    Raises:
        CheckpointError: it can't be written, on all ranks; says whether what was there is
            untouched.
    """
    # Each takes the state apart, and nothing is on storage yet: a state that can't be saved touches
    # nothing.
    part = together(collectives, lambda: PartWriter(state, collectives.rank))
    with ExitStack() as stack:
        # What rank 0 enters here stays locked until the checkpoint is in place.
        token, replaces = on_rank_zero(
            collectives, lambda: _explained(folder, lambda: _begin(folder, stack))
        )
        committed = False

        def write() -> Written:
            _explained(folder, lambda: stack.enter_context(folder.stage(token)))
            entries = _explained(folder, lambda: part.write(folder, token))
            if replaces:  # what is there goes only for what can be read
                _explained(folder, lambda: folder.read_back(token, entries))
            return _packed(entries), part.num_written

        try:
            # Once this returns, the files of all ranks are complete: the moment for the manifest.
            written = gather_results(collectives, write)
            on_rank_zero(
                collectives,
                lambda: _explained(
                    folder, lambda: _commit(folder, token, part, written, collectives)
                ),
            )
            committed = True
        finally:
            if collectives.rank == 0 and not committed:
                folder.discard(token)


def _begin(folder: Folder, stack: ExitStack) -> tuple[str, bool]:
    """Rank 0. The save's own name, and whether a checkpoint would be replaced."""
    dates.look_beside(str(folder))
    return stack.enter_context(folder.begin()), _is_there(folder)


def _commit(
    folder: Folder,
    token: str,
    part: PartWriter,
    written: list[Written],
    collectives: Collectives,
) -> None:
    """Rank 0. Check that nothing is missing, and make it a checkpoint."""
    expected = "The chunks of all ranks must cover each tensor, and each of its elements once."
    if (total := sum(number for _, number in written)) != part.num_elements:
        raise CheckpointError(
            f"The ranks have {total} elements of tensors to save, and the state has "
            f"{part.num_elements}. {expected} {_CURE}"
        )
    files = {
        f"{token}-{rank:05}.{end}": FileEntry(size, content.hex())
        for rank, (entries, _) in enumerate(written)
        for end, size, content in entries
    }
    content = Manifest(files, collectives.size, dict(collectives.writer)).to_bytes()
    folder.commit(token, content, files)


def _is_there(folder: Folder) -> bool:
    """True if a checkpoint would be replaced. By reading, which stores' clients try again when it
    fails.
    """
    try:
        folder.read_manifest()
    except FileNotFoundError:
        return False
    except Exception:  # of any store's making
        return folder.exists()
    return True


def _packed(entries: dict[str, FileEntry]) -> list[tuple[str, int, bytes]]:
    return [
        (name.rpartition(".")[2], entry.size_bytes, bytes.fromhex(entry.digest))
        for name, entry in entries.items()
    ]


def _explained(folder: Folder, work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        raise messages.cannot_write(str(folder), error) from error
