"""The manifest of a checkpoint folder: written last, and what makes the folder a checkpoint."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from core._version import __version__
from core.checkpoint import digest
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "manifest.json"
FORMAT = 1
_TITLE = "core checkpoint"

OWN_FILE = re.compile(r"[0-9a-f]{8}-\d{5,}\.(data|json)")
"""Names of the files of a folder, beside its manifest: those of one save have their first part in common."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the folder.

    Attributes:
        size_bytes: of the whole.
        digest: made of the digests of its blocks; see `core.checkpoint.digest`.
    """

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in the folder, and who wrote it.

    Attributes:
        files: by name.
        world_size: number of processes that wrote them.
        writer: alias, provider and version of strategy and precision.
        saved_at_ns: nanoseconds since 1970.
        versions: of core and torch.
    """

    files: dict[str, FileEntry]
    world_size: int
    writer: dict[str, Any]
    saved_at_ns: int = field(default_factory=time.time_ns)
    versions: dict[str, str] = field(default_factory=lambda: {"core": __version__, "torch": torch.__version__})

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
        if content.pop("title") != _TITLE:
            raise ValueError("it is something else")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptedError(
            f"{path!r} is damaged, or not the manifest of a checkpoint: {error!r}."
        ) from None
    content.pop("checksum", None)
    number = content.get("format")
    if raw != _sealed({"title": _TITLE, **content}):
        raise CheckpointCorruptedError(f"{path!r} is damaged: its content does not have the checksum in its last line.")
    if not isinstance(number, int) or number > FORMAT:
        release = content.get("versions", {}).get("core", "?")
        raise CheckpointCorruptedError(
            f"{path!r} has format {number}; this is core {__version__}, which reads up to {FORMAT}. It was written by "
            f"core {release}: update with `pip install 'core>={release}'`."
        )
    return _parse(content, path)


def _parse(content: Mapping[str, Any], path: str) -> Manifest:
    if foreign := [name for name in content.get("files", ()) if not OWN_FILE.fullmatch(name)]:
        raise CheckpointCorruptedError(f"{path!r} names a file outside of its folder, or not of core: {foreign[0]!r}.")
    try:
        return Manifest(
            files={name: FileEntry(**entry) for name, entry in content["files"].items()},
            world_size=content["world_size"],
            writer=content["writer"],
            saved_at_ns=content["saved_at_ns"],
            versions=content["versions"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptedError(f"{path!r} is not a manifest that core has written: {error!r}.") from None


def _sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=1)[:-2]  # without the last brace
    return f'{text},\n "checksum": "{digest.of_bytes(text.encode())}"\n}}\n'.encode()
