"""The kinds of a folder without a manifest: a save that didn't end, or the work of another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.checkpoint.format import manifest
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointCorruptedError
from core.text.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_MOST_NAMES = 5


def unfinished_or_foreign(path: str, names: Collection[str]) -> CheckpointCorruptedError:
    """The error for a folder that can't be read as a checkpoint, by what lies in it."""
    where = f"{path!r} is a folder without {manifest.NAME}:"
    if any(manifest.OWN_FILE.fullmatch(name) for name in names):
        return CheckpointCorruptedError(f"{where} a checkpoint that was never completed. Load an earlier checkpoint.")
    return CheckpointCorruptedError(
        f"{where} no checkpoint of core, and nothing of it was damaged. {_what_reads(path, names)}"
    )


def _what_reads(path: str, names: Collection[str]) -> str:
    from core.registry.checkpoint_readers import what_reads

    if (found := what_reads(path, names)) is not None:
        return found
    weights = sorted(name for name in names if name.endswith(messages.FILE_SUFFIXES))
    if ".metadata" in names and any(name.endswith(".distcp") for name in names):
        return (
            "It looks like torch.distributed.checkpoint's. One file of it, which can be loaded, is made by "
            f"`python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path!r} {f'{path}.pt'!r}`."
        )
    if "config.json" in names and any(name.endswith(".safetensors") for name in weights):
        return f"It looks like a model of Hugging Face's: from_pretrained({path!r}) reads it. {_in_it(weights)}"
    return _in_it(weights or sorted(name for name in names if not name.startswith(".")))


def _in_it(names: Sequence[str]) -> str:
    """A sentence on what may have been meant."""
    if not names:
        return "It is empty."
    shown = ", ".join(map(printable, names[:_MOST_NAMES]))
    return f"If something in it was meant, name that: {shown}{', ...' if len(names) > _MOST_NAMES else ''}"
