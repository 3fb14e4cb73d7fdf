"""All ranks write one checkpoint together, which exists whole or not at all."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from core.checkpoint.any_form import dates
from core.checkpoint.folder.writer import PartWriter
from core.checkpoint.format.manifest import FileEntry, Manifest
from core.checkpoint.joint.agreement import gather_results, on_rank_zero, together
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.folder.folder import Folder
    from core.contract.checkpoint_io import Collectives

    Written = tuple[dict[str, FileEntry], int]
    """The files of a part, and the number of elements that were written."""


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
        def begin() -> tuple[str, bool]:
            with _explained(folder):
                dates.look_beside(str(folder))
                return stack.enter_context(folder.begin()), folder.exists()

        token, replaces = on_rank_zero(collectives, begin)
        committed = False

        def write() -> Written:
            with _explained(folder):
                stack.enter_context(folder.stage(token))
                entries = part.write(folder, token)
                if replaces:  # what is there goes only for what can be read
                    folder.read_back(token, entries)
            return entries, part.num_written

        def commit() -> None:
            total = sum(number for _, number in written)
            files = {name: entry for entries, _ in written for name, entry in entries.items()}
            with _explained(folder):
                if total != part.num_elements:
                    raise CheckpointError(
                        f"The ranks have {total} elements of tensors to save, and the state has "
                        f"{part.num_elements}. The chunks of all ranks must cover each tensor, and "
                        "each of its elements once. Save DTensors, or ShardedLeafs whose chunks "
                        "lie side by side."
                    )
                manifest = Manifest(files, collectives.size, dict(collectives.writer))
                folder.commit(token, manifest.to_bytes(), files)

        try:
            # Once this returns, the files of all ranks are complete: the moment for the manifest.
            written = gather_results(collectives, write)
            on_rank_zero(collectives, commit)
            committed = True
        finally:
            if collectives.rank == 0 and not committed:
                folder.discard(token)


@contextmanager
def _explained(folder: Folder) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise messages.cannot_write(str(folder), error) from error
