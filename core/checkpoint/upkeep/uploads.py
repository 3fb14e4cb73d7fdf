"""Uploads in parts that killed writers have left at an object store: no listing shows them, and they are paid for.

fsspec has no name for them. A store that speaks S3 offers what is needed by `call_s3` of s3fs.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.checkpoint.format import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.storage.remote_path import RemotePath

_MARKS = {
    "list_multipart_uploads": {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
    "list_parts": {"PartNumberMarker": "NextPartNumberMarker"},
}
"""The arguments of the next question, and the keys under which the answer before has them."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a checkpoint of which parts have come to a store, and that isn't there.

    Attributes:
        url: that the file would have.
        size_bytes: of the parts.
        store: fsspec's file system.
        place: of the upload, as the store names it.
    """

    url: str
    size_bytes: int
    store: Any
    place: dict[str, str]

    def abort(self) -> None:
        """Delete the parts."""
        with contextlib.suppress(FileNotFoundError):
            self.store.call_s3("abort_multipart_upload", **self.place)


def unfinished(path: RemotePath, idle_s: float) -> Iterator[Upload]:
    """Uploads of files in a folder of checkpoints that didn't end; none where the store doesn't list them.

    Args:
        path: of the folder of checkpoints.
        idle_s: seconds in which no part of them has come, by the store's own clock.

    Raises:
        Exception: the store's, such as one for a key that isn't allowed to ask.
    """
    if not hasattr(path.filesystem, "call_s3"):
        return
    bucket, _, folder = path.name.strip("/").partition("/")
    prefix = f"{folder}/" if folder else ""
    for answer in _pages(path.filesystem, "list_multipart_uploads", Bucket=bucket, Prefix=prefix):
        for entry in answer.get("Uploads", ()):
            name = entry["Key"].removeprefix(prefix)
            # Most are alive, and were begun just now: one look shows that.
            if _is_ours(name) and _idle_s(answer, [entry["Initiated"]]) >= idle_s:
                place = {"Bucket": bucket, "Key": entry["Key"], "UploadId": entry["UploadId"]}
                yield from _looked_at(f"{path.url.rstrip('/')}/{name}", path.filesystem, place, idle_s)


def _is_ours(name: str) -> bool:
    """True if a name within a folder of checkpoints is one that a save gives to a file."""
    folder, _, file = name.rpartition("/")
    return bool(manifest.OWN_FILE.fullmatch(file)) if folder and "/" not in folder else name.endswith(".partial")


def _looked_at(url: str, store: Any, place: dict[str, str], idle_s: float) -> Iterator[Upload]:
    size_bytes = 0
    try:
        for answer in _pages(store, "list_parts", **place):
            parts = answer.get("Parts", ())
            size_bytes += sum(part["Size"] for part in parts)
            if _idle_s(answer, [part["LastModified"] for part in parts]) < idle_s:
                return
    except FileNotFoundError:  # it has ended meanwhile
        return
    yield Upload(url, size_bytes, store, place)


def _pages(store: Any, method: str, **asked: Any) -> Iterator[dict[str, Any]]:
    answer: dict[str, Any] = {"IsTruncated": True}
    while answer.get("IsTruncated"):
        answer = store.call_s3(method, **asked)
        yield answer
        asked |= {mark: answer[key] for mark, key in _MARKS[method].items() if key in answer}


def _idle_s(answer: dict[str, Any], times: list[Any]) -> float:
    """Seconds between the last of some times and an answer of the store that names them; without end if there are none.

    Below every number where the store doesn't say when it has answered.
    """
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if date is None:
        return -math.inf
    now = email.utils.parsedate_to_datetime(date)
    return min(((now - time).total_seconds() for time in times), default=math.inf)
