"""A checkpoint in one file, with its digest within or beside it: replaced whole, and verified when
it is read.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from core.checkpoint.file.location import Location, location_of
from core.checkpoint.format import digest
from core.checkpoint.format.digest import name_of
from core.checkpoint.storage import messages
from core.checkpoint.storage.place import place_of
from core.contract.errors import CheckpointCorruptedError, CheckpointError
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract.checkpoint_io import PathLike


def replace(
    path: PathLike, write: Callable[[digest.HashingWriter], None], *, is_sealed: bool = False
) -> None:
    """Replace what is at `path` by what `write` writes, front to back.

    Args:
        path: a local path or a URL.
        write: writes the file.
        is_sealed: it writes the digest too.

    Raises:
        CheckpointError: it can't be written; says whether what was there is untouched.
    """
    try:
        location_of(path).replace(
            lambda file: digest.HashingWriter(file).digest_of(write), is_sealed=is_sealed
        )
    except Exception as error:
        raise messages.cannot_write(os.fspath(path), error) from error


def read(
    path: PathLike, parse: Callable[[BinaryIO, str], dict[str, Any]], *, warns: bool = False
) -> dict[str, Any]:
    """Return what `parse` makes of the file and its name, once its digest is known to be right.

    Args:
        path: a local path or a URL.
        parse: understands the content. A file without a digest, as other programs write it, is
            parsed as it is.
        warns: of a file without a digest.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointCorruptedError: it is damaged, or not a checkpoint.
        CheckpointError: it can't be read.
    """
    try:
        return _verified(location_of(path), os.fspath(path), parse, warns)
    except CheckpointError:
        raise
    except NotAFileError as error:
        raise CheckpointCorruptedError(f"{os.fspath(path)!r} can't be read: {error}.") from error
    except FileNotFoundError as error:
        raise messages.not_found(os.fspath(path), place_of(path)) from error
    except Exception as error:
        raise messages.cannot_read(os.fspath(path), error) from error


def digests_of(path: Path) -> list[str]:
    """The digests that a local file has at its end, or in the file beside it; none if it has
    neither.
    """
    from core.checkpoint.format import seal

    with path.open("rb") as file:
        within = seal.read(file)
    if within is not None:
        return [within]
    beside = Path(name_of(path.as_posix()))
    if not beside.is_file():
        return []
    return digest.from_text(beside.read_bytes())


def _verified(
    location: Location, path: str, parse: Callable[[BinaryIO, str], dict[str, Any]], warns: bool
) -> dict[str, object]:
    from core.checkpoint.format import seal  # who reads no file waits for none of it

    while True:
        content = location.read_digest()
        with location.open() as file:
            within = seal.read(file)
            file.seek(0)
            if within is not None:
                is_right = seal.is_right(file, within)
            elif content is not None:
                is_right = digest.of_file(file) in digest.from_text(content)
            else:
                is_right = True
                if warns:
                    warnings.warn(
                        f"{path!r} has no digest beside it ({name_of(path)}), so damage to it "
                        "would not be seen. Save it again with core to get one.",
                        stacklevel=2,
                    )
            if is_right:
                file.seek(0)
                return parse(file, path)
        # Another process may have replaced both between the two reads.
        if within is not None:
            raise CheckpointCorruptedError(
                f"{path!r} is damaged: its content does not have the digest at its end. Load an "
                "earlier checkpoint."
            )
        if location.read_digest() != content:
            continue
        if not digest.from_text(content or b""):
            raise CheckpointCorruptedError(
                f"{name_of(path)} is damaged: expected lines with a digest. Delete it to load "
                f"{path!r} unverified."
            )
        raise CheckpointCorruptedError(
            f"{path!r} is damaged: its content does not have the digest in {name_of(path)}. Load "
            "an earlier checkpoint. If you replaced the file yourself, delete that digest."
        )
