"""The parts of the core's checkpoint folder from which another package can build a CheckpointIO of
its own.

A `PartWriter` writes what one rank has, a `Manifest` names the files of all, a `FolderReader` reads
what one needs.
"""

from core.checkpoint.file.single_file import digests_of as digests_of_file
from core.checkpoint.file.torch_file import unpickle
from core.checkpoint.folder.local_folder import LocalFolder
from core.checkpoint.folder.reader import FolderReader, Plan
from core.checkpoint.folder.writer import PartWriter
from core.checkpoint.format.chunk_reads import ChunkRead
from core.checkpoint.format.digest import Blocks, is_content
from core.checkpoint.format.digest import of_bytes as digest_of
from core.checkpoint.format.manifest import NAME as MANIFEST_NAME
from core.checkpoint.format.manifest import FileEntry, Manifest
from core.checkpoint.format.manifest import from_bytes as parse_manifest
from core.checkpoint.format.verified_file import VerifiedFile
from core.checkpoint.joint.agreement import together
from core.checkpoint.state.shards import chunks_to_fill, shape_of
from core.checkpoint.storage.messages import FILE_SUFFIXES, cannot_write, overwriting

__all__ = [
    "FILE_SUFFIXES",
    "MANIFEST_NAME",
    "Blocks",
    "ChunkRead",
    "FileEntry",
    "FolderReader",
    "LocalFolder",
    "Manifest",
    "PartWriter",
    "Plan",
    "VerifiedFile",
    "cannot_write",
    "chunks_to_fill",
    "digest_of",
    "digests_of_file",
    "is_content",
    "overwriting",
    "parse_manifest",
    "shape_of",
    "together",
    "unpickle",
]
