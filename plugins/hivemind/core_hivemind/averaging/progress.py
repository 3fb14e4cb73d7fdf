"""The samples that all peers have seen for the step that is on, and the peers that are gone."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PING_TIMEOUT_S = 5


class SwarmProgress(ProgressTracker):  # type: ignore[misc]
    """The samples that all peers have seen for the step that is on."""

    _entries: Any = None
    _gone: dict[bytes, float] = {}  # noqa: RUF012  # replaced, never changed; hivemind's __init__ reads it already

    def forget_gone(self) -> None:
        """While updates pause. Leave out peers that don't answer, until they report again.

        Each round of averaging would wait for them, until what they have reported expires.
        """
        others = {
            peer: when
            for peer, when in _reachable(self._entries)
            if peer != self.local_progress.peer_id
        }
        asked = self.dht.run_coroutine(partial(_answering, peers=list(others)), return_future=True)
        try:
            answering = asked.result(_PING_TIMEOUT_S)
        except Exception:  # nothing is known of them
            return
        if gone := {peer: when for peer, when in others.items() if peer not in answering}:
            self._gone = self._gone | gone
            self.global_progress = self._parse_swarm_progress_data(self._entries)

    def _parse_swarm_progress_data(self, metadata: Any) -> Any:
        """Count our own samples as they are now. What peers have received may be older, and a step
        be missed.
        """
        self._entries = metadata
        if isinstance(metadata, dict):
            metadata = {
                key: value
                for key, value in metadata.items()
                if _time_of(value) > self._gone.get(_peer_of(value), -1.0)
            }
            own = self.local_progress
            entries = {
                key: value for key, value in metadata.items() if _peer_of(value) != own.peer_id
            }
            mine = ValueWithExpiration(own.dict(), get_dht_time() + self.metadata_expiration)
            metadata = {**entries, self._local_public_key: mine}
        return super()._parse_swarm_progress_data(metadata)

    def report_and_count(self) -> int:
        """Report to the others that this peer begins, before its first batch.

        Returns:
            Number of peers that have begun, this one included.
        """
        self._publish(self.local_progress.dict()).result()
        with self.pause_updates():
            found = self.dht.get(self.training_progress_key, latest=True)
            self.global_progress = self._parse_swarm_progress_data(found and found.value)
            return int(self.global_progress.num_peers)

    def _publish(self, value: Any) -> Any:
        return self.dht.store(
            self.training_progress_key,
            subkey=self._local_public_key,
            value=value,
            expiration_time=get_dht_time() + self.metadata_expiration,
            return_future=True,
        )

    @property
    def ready_to_update_epoch(self) -> bool:
        """True if the step is due. hivemind goes by an estimate, which is of no use to a peer that
        is alone.
        """
        progress = self.global_progress
        if progress.num_peers <= 1 and progress.epoch <= self.local_progress.epoch:
            return bool(self.local_progress.samples_accumulated >= self.target_batch_size)
        return bool(super().ready_to_update_epoch)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread, and take our samples back. hivemind wouldn't wait until that has
        arrived.
        """
        self.shutdown_triggered.set()
        self.should_report_progress.set()
        self.global_state_updated.set()
        self.join(timeout)
        self._publish(None).result(timeout)

    def __del__(self) -> None:
        """Nothing: it ends in `Swarm.leave`."""

    def run(self) -> None:
        """The thread. Leave no thread of its own behind."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(
                asyncio.gather(self._progress_reporter(), self._progress_fetcher())
            )
            rest = asyncio.all_tasks(loop)
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            self.shutdown_complete.set()
            loop.close()


def _peer_of(entry: Any) -> bytes:
    return bytes(_reported(entry).get("peer_id", b""))


def _time_of(entry: Any) -> float:
    return float(_reported(entry).get("time", 0.0))


def _reported(entry: Any) -> dict[str, Any]:
    value = getattr(entry, "value", None)
    return value if isinstance(value, dict) else {}


def _reachable(entries: Any) -> Iterator[tuple[bytes, float]]:
    """Peers that can be asked whether they are here, and when they last reported."""
    if isinstance(entries, dict):
        for entry in entries.values():
            if (peer := _peer_of(entry)) and not _reported(entry).get("client_mode"):
                yield peer, _time_of(entry)


async def _answering(dht: Any, node: Any, *, peers: Sequence[bytes]) -> list[bytes]:
    """In the node's process. Those of the peers that answer."""
    answers = await asyncio.gather(*(node.protocol.call_ping(PeerID(peer)) for peer in peers))
    return [peer for peer, answer in zip(peers, answers, strict=True) if answer is not None]
