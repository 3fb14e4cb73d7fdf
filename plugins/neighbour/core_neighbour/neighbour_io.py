"""A checkpoint in the memory of nodes: each has the parts of its own ranks, and of those of the
node before.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from core.checkpoint.building_blocks import FolderReader, cannot_write, overwriting, together
from core.contract import (
    CheckpointError,
    CheckpointIO,
    CheckpointNotFoundError,
    DirectCollectives,
    UnsupportedError,
)
from core_neighbour import node_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from core.checkpoint.building_blocks import ChunkRead
    from core.contract import Collectives, PathLike
    from core_neighbour.node_parts import Part

T = TypeVar("T")


class NeighbourCheckpointIO(CheckpointIO):
    """Saves to a folder of each node, which the others don't see: after the loss of a node, every
    part is somewhere.

    Each rank writes its own part, and gives it to a rank of the next node. To load, a rank gets
    from other nodes the files that it needs, at any number of ranks. A save that isn't complete on
    all nodes is none. It is no checkpoint that lasts: it is as safe as the memory of two nodes, and
    a path means something on these nodes only.

    Order of calls: `save_checkpoint` any number of times; or, in another process, `newest` and then
    `load_checkpoint`.
    """

    layout = "sharded"

    def __init__(self, node: int) -> None:
        """Make it, one for each rank.

        Args:
            node: number of this rank's node.
        """
        self._node = node
        self._ring: _Ring | None = None
        self._found: dict[int, Part] = {}
        self._holders: dict[str, dict[int, int]] = {}

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Write this rank's part to `path`, and to the next node.

        Args:
            state: as for `DistributedCheckpointIO`.
            path: of a local folder in memory, that isn't there; all ranks name the same.
            collectives: the ranks that call this together.

        Raises:
            CheckpointError: it can't be written, or `state` holds something that can't be saved. On
                all ranks.
            UnsupportedError: these ranks can't reach each other one by one.
        """
        assert state is not None, "every rank has its part of a state of layout 'sharded'"
        ring, folder = self._connected(collectives), Path(path)
        token = ring.next_token()
        part, received, problem = None, [], None
        try:
            part = node_parts.write(folder, state, token, ring.rank, ring.size)
        except Exception as error:  # raised on all ranks when all are here
            problem = error
        try:
            received = ring.pass_on(folder, part)
        except Exception as error:
            problem = problem or error
        # No rank sends what another one has no room for.
        if not ring.agree(problem is None):
            _raise_together(ring.direct, problem, path)
        ring.send_files(folder, part, received)
        try:
            for each in [part, *(giver_part for giver_part, _ in received)]:
                assert each is not None, "all ranks have written"
                node_parts.add_note(folder, each)
        except OSError as error:
            problem = error
        # What this save replaces may go now, on any node.
        if not ring.agree(problem is None):
            _raise_together(ring.direct, problem, path)

    def newest(
        self, parent: PathLike, *, collectives: Collectives, names: Container[str] | None = None
    ) -> tuple[str, int] | None:
        """All ranks. Name, and nanoseconds since 1970, of the newest checkpoint in a folder that is
        complete.

        Every byte is read and verified, each on one rank. `load_checkpoint` loads what was found
        last.

        Args:
            parent: the folder, on this node.
            collectives: the ranks that call this together.
            names: of checkpoints that may be it; None for any.
        """
        ring = self._connected(collectives)
        own = node_parts.find(Path(parent), ring.share)
        offers = ring.direct.broadcast_object(ring.direct.gather_objects(own))
        parts = (part for offer in offers for part in offer)
        found = node_parts.complete(
            part for part in parts if names is None or part.checkpoint in names
        )
        self._found, self._holders = found or {}, {}
        if found is None:
            return None
        for rank, offer in enumerate(offers):
            for part in offer:
                for name in part.files:
                    self._holders.setdefault(name, {}).setdefault(ring.nodes[rank], rank)
        return found[0].checkpoint, found[0].saved_at_ns

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what `newest` has found, which lies at `path` on each node that has some of it.

        Raises:
            CheckpointNotFoundError: `newest` hasn't found it.
            CheckpointError: as `DistributedCheckpointIO.load_checkpoint`.
        """
        plan = self._with_files(path, collectives, lambda reader: _planned(reader, state))
        with overwriting(plan.has_targets):
            return together(collectives, plan.fill)

    def describe_checkpoint(
        self, path: PathLike, *, collectives: Collectives
    ) -> dict[str, Any] | None:
        """All ranks. The state that `newest` has found, with a `TensorDescription` in the place of
        each tensor.
        """
        return self._with_files(path, collectives, lambda reader: (reader.describe(), []))  # type: ignore[no-any-return]

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete what this node has at `path`."""
        shutil.rmtree(path, ignore_errors=True)

    def exists(self, path: PathLike) -> bool:
        """True if `newest` has found it."""
        return bool(self._found) and self._found[0].checkpoint == Path(path).name

    def _connected(self, collectives: Collectives) -> _Ring:
        if self._ring is None:
            direct = collectives.in_background()
            if direct.size > 1 and not isinstance(direct, DirectCollectives):
                raise UnsupportedError(
                    f"{type(direct).__name__} has no `exchange`: these ranks can't reach each "
                    "other one by one, and none can give its shards to another node. Use another "
                    "CheckpointIO."
                )
            self._ring = _Ring(direct, self._node)  # type: ignore[arg-type]  # it is one, or alone
        return self._ring

    def _with_files(
        self,
        path: PathLike,
        collectives: Collectives,
        work: Callable[[FolderReader], tuple[T, list[ChunkRead]]],
    ) -> T:
        """All ranks. The result of `work`, once each has the files for it, and those that are to be
        read.
        """
        if not self.exists(path):
            raise CheckpointNotFoundError(
                f"There is no checkpoint {os.fspath(path)!r} in the memory of these nodes. Load "
                "one from a disk."
            )
        ring = self._connected(collectives)
        content = node_parts.manifest_of(self._found, dict(collectives.writer))
        wanted = self._likely_files(ring)
        while True:
            self._fetch(ring, Path(path), wanted)
            here = {name for name, holders in self._holders.items() if self._node in holders}
            folder = node_parts.NodeFolder(Path(path), here)
            result, needed = together(ring.direct, lambda: _attempt(folder, content, work, ring))  # noqa: B023
            requests = ring.direct.broadcast_object(
                ring.direct.gather_objects((self._node, needed))
            )
            wanted = [(node, name) for node, names in requests for name in names]
            if not wanted:
                return result  # type: ignore[return-value]  # nothing is missing

    def _likely_files(self, ring: _Ring) -> list[tuple[int, str]]:
        """Node and name: all indexes, what isn't cut, and what the same number of ranks will
        need.
        """
        as_many = ring.size == len(self._found)
        return [
            (node, name)
            for node in dict.fromkeys(ring.nodes)
            for rank, part in self._found.items()
            for name in part.files
            if name.endswith(".json") or rank == 0 or (as_many and ring.nodes[rank] == node)
        ]

    def _fetch(self, ring: _Ring, folder: Path, wanted: Iterable[tuple[int, str]]) -> None:
        """All ranks, which name the same. Bring files to nodes that lack them."""
        sizes = {
            name: entry.size_bytes
            for part in self._found.values()
            for name, entry in part.files.items()
        }
        sends, receives = [], []
        missing = [
            (node, name) for node, name in dict.fromkeys(wanted) if node not in self._holders[name]
        ]
        if not missing:
            return

        def prepare() -> None:
            for number, (node, name) in enumerate(missing):
                holders = list(self._holders[name].values())
                giver, taker = holders[number % len(holders)], ring.rank_on(node, number)
                if giver == ring.rank:
                    sends.append((taker, node_parts.content_of(folder / name)))
                if taker == ring.rank:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    receives.append((giver, node_parts.place(folder / name, sizes[name])))

        together(ring.direct, prepare)
        ring.exchange(sends, receives)
        ring.direct.barrier()
        for number, (node, name) in enumerate(missing):
            self._holders[name][node] = ring.rank_on(node, number)


class _Ring:
    """The ranks by node, each of which gives what it has to a rank of the next node.

    Attributes:
        direct: the way to the others.
        rank: number of this process.
        size: number of processes.
        nodes: number of the node of each rank.
    """

    def __init__(self, direct: DirectCollectives, node: int) -> None:
        self.direct, self.rank, self.size = direct, direct.rank, direct.size
        found = direct.gather_objects((node, secrets.token_hex(4)))
        self.nodes, self._first_token = direct.broadcast_object(
            found and ([own for own, _ in found], found[0][1])
        )
        self._num_saved = 0
        self._ranks: dict[int, list[int]] = {}
        for rank, number in enumerate(self.nodes):
            self._ranks.setdefault(number, []).append(rank)
        takers = self._takers()
        self._taker = takers.get(self.rank)
        self._givers = [giver for giver, taker in takers.items() if taker == self.rank]

    @property
    def share(self) -> tuple[int, int]:
        """Number of this process on its node, and of all there."""
        ranks = self._ranks[self.nodes[self.rank]]
        return ranks.index(self.rank), len(ranks)

    def agree(self, vote: bool) -> bool:
        """All ranks. True if all say so."""
        return vote if self.size == 1 else self.direct.agree(vote)

    def exchange(self, sends: list[tuple[int, Any]], receives: list[tuple[int, Any]]) -> None:
        """Send and receive; ranks with nothing to do, such as one alone, take no part."""
        if sends or receives:
            self.direct.exchange(sends, receives)

    def next_token(self) -> str:
        """A name for a save, the same on all ranks."""
        self._num_saved += 1
        return f"{(int(self._first_token, 16) + self._num_saved) % (1 << 32):08x}"

    def rank_on(self, node: int, number: int) -> int:
        """A rank of a node, by turns."""
        ranks = self._ranks[node]
        return ranks[number % len(ranks)]

    def pass_on(self, folder: Path, part: Part | None) -> list[tuple[Part, list[Any]]]:
        """All ranks. Send the next node a note of what it will get, and make room for what this
        rank gets.

        Args:
            folder: of the checkpoint.
            part: None if it couldn't be written: the others then hear of it.

        Returns:
            Each part that will come, with the memory of its files.
        """
        if self._taker is None and not self._givers:
            return []
        sent = bytearray(part.to_bytes() if part is not None else bytes(node_parts.NOTE_BYTES))
        notes = [(giver, bytearray(node_parts.NOTE_BYTES)) for giver in self._givers]
        self.exchange([(self._taker, sent)] if self._taker is not None else [], notes)
        parts = [node_parts.part_from(bytes(note)) for _, note in notes]
        return [
            (
                each,
                [
                    node_parts.place(folder / name, entry.size_bytes)
                    for name, entry in each.files.items()
                ],
            )
            for each in parts
            if each is not None
        ]

    def send_files(
        self, folder: Path, part: Part | None, received: list[tuple[Part, list[Any]]]
    ) -> None:
        """All ranks, once all have room. Send the own files to the next node, and receive
        others.
        """
        sends = []
        if self._taker is not None and part is not None:
            sends = [(self._taker, node_parts.content_of(folder / name)) for name in part.files]
        self.exchange(sends, [(each.rank, place) for each, places in received for place in places])

    def _takers(self) -> dict[int, int]:
        """By rank, the one in the same place of the next node; nothing if there is one node."""
        nodes = list(self._ranks.values())
        if len(nodes) == 1:
            return {}
        following = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        return {
            rank: takers[place % len(takers)]
            for ranks, takers in following
            for place, rank in enumerate(ranks)
        }


def _planned(reader: FolderReader, state: Any) -> tuple[Any, list[ChunkRead]]:
    plan = reader.plan(state)
    return plan, plan.reads


def _attempt(
    folder: node_parts.NodeFolder,
    content: bytes,
    work: Callable[[FolderReader], tuple[T, list[ChunkRead]]],
    ring: _Ring,
) -> tuple[T | None, list[str]]:
    """Do it, and name the files that are missing for it."""
    try:
        result, reads = work(FolderReader(folder, content, (ring.rank, ring.size)))
    except node_parts.AbsentError as absent:
        return None, [absent.args[0]]
    files = {id(read.saved.file): read.saved.file for read in reads}.values()
    return result, [os.path.basename(file.path) for file in files if node_parts.is_absent(file)]


def _raise_together(direct: DirectCollectives, problem: Exception | None, path: PathLike) -> None:
    """All ranks. Raise what has failed on one of them."""

    def fail() -> None:
        if problem is not None:
            raise (
                problem
                if isinstance(problem, CheckpointError)
                else cannot_write(os.fspath(path), problem)
            )

    together(direct, fail)
