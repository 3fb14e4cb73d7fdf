"""The manifest of a checkpoint folder: written last, and what makes the folder a checkpoint."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from core._version import __version__
from core.checkpoint.format import digest
from core.contract.errors import CheckpointCorruptedError

NAME = "manifest.json"
FORMAT = 2
"""1 had blocks of 4 MiB, and said nothing of them."""
MAX_BYTES = 64 << 20
"""The largest size of a manifest, which names two files of each rank."""
_TITLE = "core checkpoint"
_FIRST_BLOCK_BYTES = 4 << 20

OWN_FILE = re.compile(r"[0-9a-f]{8}-\d{5,}\.(data|json)")
"""Names of the files of a folder, beside its manifest: those of one save have their first part in
common.
"""


_STEP_NS = 1_000_000
"""Times of two saves differ by so much at least: as seconds in a float, and on a file system, they
still do.
"""
_seen_ns = 0


def note_time(saved_at_ns: int) -> None:
    """Date what this process saves from now on later than a checkpoint that it has seen."""
    global _seen_ns
    _seen_ns = max(_seen_ns, saved_at_ns)


def next_time_ns() -> int:
    """Nanoseconds since 1970, later than what this process has saved or seen: a clock may jump
    back.
    """
    note_time(max(time.time_ns(), _seen_ns + _STEP_NS))
    return _seen_ns


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the folder.

    Attributes:
        size_bytes: of the whole.
        digest: made of the digests of its blocks; see `core.checkpoint.format.digest`.
    """

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the folder, and its writer.

    Attributes:
        files: by name.
        world_size: number of processes that wrote them.
        writer: alias, provider and version of strategy and precision.
        saved_at_ns: nanoseconds since 1970; see `next_time_ns`.
        versions: of core and torch.
        block_bytes: of the blocks that have digests.
    """

    files: dict[str, FileEntry]
    world_size: int
    writer: dict[str, Any]
    saved_at_ns: int = field(default_factory=next_time_ns)
    versions: dict[str, str] = field(
        default_factory=lambda: {"core": __version__, "torch": torch.__version__}
    )
    block_bytes: int = field(default_factory=lambda: digest.BLOCK_BYTES)

    def to_bytes(self) -> bytes:
        """Content of the file, which ends with its own checksum."""
        content = {"title": _TITLE, "format": FORMAT, **asdict(self)}
        return _sealed(content)

    @property
    def indexes(self) -> list[str]:
        """Names of the files that say what is where, in the order of ranks."""
        return sorted(name for name in self.files if name.endswith(".json"))


def from_bytes(raw: bytes, path: str) -> Manifest:
    """The manifest in a file's content.

    Args:
        raw: the whole content.
        path: of the file, for the message.

    Raises:
        CheckpointCorruptedError: it is damaged, of a newer format, or something else.
    """
    try:
        content = json.loads(raw)
        if content["title"] != _TITLE:
            raise ValueError("it is something else")
        content.pop("checksum", None)
        # Written again and compared: any changed byte shows, even white space.
        is_sealed = raw == _sealed(content)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptedError(
            f"{path!r} is damaged, or not the manifest of a checkpoint: {error!r}."
        ) from None
    # Before the format: a newer release seals its manifest in the same way, so a wrong seal is
    # damage.
    if not is_sealed:
        raise CheckpointCorruptedError(
            f"{path!r} is damaged: its content does not have the checksum in its last line."
        )
    try:
        if content["format"] > FORMAT:
            raise CheckpointCorruptedError(
                f"{path!r} has format {content['format']!r}, written by core "
                f"{content['versions']['core']!r}; this is core {__version__}, which reads up to "
                f"{FORMAT}. Install that release, or a later one."
            )
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        if not all(map(OWN_FILE.fullmatch, files)):
            raise ValueError("it names a file outside of its folder, or not of core")
        return Manifest(
            files,
            content["world_size"],
            content["writer"],
            content["saved_at_ns"],
            content["versions"],
            content.get("block_bytes", _FIRST_BLOCK_BYTES),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointCorruptedError(
            f"{path!r} is not a manifest that core has written: {error!r}."
        ) from None


def _sealed(content: dict[str, object]) -> bytes:
    text = json.dumps(content, indent=1)[:-2]  # without the last brace
    return f'{text},\n "checksum": "{digest.of_bytes(text.encode())}"\n}}\n'.encode()
