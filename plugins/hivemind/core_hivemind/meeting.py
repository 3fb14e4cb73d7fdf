"""The peers of a run, as they find each other before they train: who is here, and who begins.
Imports hivemind.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hivemind.utils import get_dht_time

from core_hivemind.averaging import state_prefix
from core_hivemind.errors import PeersError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_hivemind.options import SwarmOptions

_POLL_S = 0.25
_EXPIRES_S = 30.0
_GOODBYE_S = 5.0
_LISTENS = "listens"


class Meeting:
    """The notes that peers of one run leave for each other in the distributed hash table.

    Args:
        dht: the node.
        options: of the swarm.
    """

    def __init__(self, dht: Any, options: SwarmOptions) -> None:
        self._dht = dht
        self._options = options
        self.id: bytes = dht.peer_id.to_bytes()

    def await_peers(self) -> None:
        """Wait until as many peers are here as were asked for.

        Raises:
            PeersError: they didn't come in time.
        """
        self._await_count(lambda: len(self._present() | self.training() | {self.id}), "came")

    def await_start(self, count: Callable[[], int]) -> None:
        """Wait until as many peers as were asked for have the state: the first would train alone
        until then.

        Args:
            count: reports to the others that this peer begins, and returns how many have.

        Raises:
            PeersError: they didn't in time.
        """
        if self._options.min_peers > 1:
            self._await_count(count, "began")

    def _await_count(self, count: Callable[[], int], came: str) -> None:
        wanted = self._options.min_peers
        deadline = time.monotonic() + self._options.peers_timeout_s
        while (found := count()) < wanted:
            if time.monotonic() > deadline:
                raise PeersError(
                    f"min_peers={wanted}, and {found} of run {self._options.run_id!r} {came} "
                    f"within {self._options.peers_timeout_s:g} s, this one included. Start the "
                    "others with initial_peers=... of a peer that runs, whose addresses it prints; "
                    "or wait longer, peers_timeout=timedelta(...); or leave min_peers out, to "
                    "begin alone."
                )
            self._announce()
            time.sleep(_POLL_S)

    def await_state(self, load: Callable[[], bool]) -> bool:
        """Load the run's state from a peer that trains; else find out which of those that wait
        begins.

        Args:
            load: takes the state of a peer; False if that didn't work.

        Returns:
            True if there was a state; False if this peer is the one that begins.

        Raises:
            PeersError: a peer that trains doesn't hand out its state.
        """
        deadline = time.monotonic() + self._options.peers_timeout_s
        patience = time.monotonic() + 2 * self._options.averaging.matchmaking_time
        while True:
            if self.training():
                if load():
                    return True
                if time.monotonic() > deadline:
                    raise PeersError(
                        f"Peers train under run_id={self._options.run_id!r}, and none hands out "
                        "its state: they can't be reached from here, or have gone. Try again in a "
                        "minute; peers behind a firewall need client_mode=True."
                    )
            elif not self._options.client_mode:
                if (
                    min(self._present(listens=True) | {self.id}) == self.id
                    or time.monotonic() > patience
                ):
                    return False
            elif time.monotonic() > deadline:
                raise PeersError(
                    f"No peer of run {self._options.run_id!r} has come within "
                    f"{self._options.peers_timeout_s:g} s that hands out its state, and with "
                    "client_mode=True this one can't begin: it takes no connections."
                )
            self._announce()
            time.sleep(_POLL_S)

    def training(self) -> set[bytes]:
        """Ids of the other peers that hand out the run's state."""
        return self._ids(f"{state_prefix(self._options.run_id)}.all_averagers")

    def leave(self) -> None:
        """Withdraw what this peer has published for those that look for one."""
        for key in (self._key, f"{state_prefix(self._options.run_id)}.all_averagers"):
            self._store(key, None, timeout_s=_GOODBYE_S)

    def _present(self, *, listens: bool = False) -> set[bytes]:
        """Ids of the other peers that wait; with `listens` of those that can hand out a state."""
        return self._ids(self._key, _LISTENS if listens else None)

    def _announce(self) -> None:
        self._store(self._key, "connects" if self._options.client_mode else _LISTENS)

    @property
    def _key(self) -> str:
        return f"{self._options.run_id}_present"

    def _store(self, key: str, value: Any, timeout_s: float | None = None) -> None:
        until = get_dht_time() + _EXPIRES_S
        future = self._dht.store(
            key, value=value, subkey=self.id, expiration_time=until, return_future=True
        )
        future.result(timeout_s)

    def _ids(self, key: str, wanted: str | None = None) -> set[bytes]:
        found = self._dht.get(key, latest=True)
        entries = found.value if found is not None and isinstance(found.value, dict) else {}
        values = {peer: getattr(entry, "value", None) for peer, entry in entries.items()}
        return {
            peer for peer, value in values.items() if value is not None and wanted in (None, value)
        } - {self.id}
