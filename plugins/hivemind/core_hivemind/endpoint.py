"""A peer's addresses at a place that is known beforehand: they themselves are new with each
start.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from core import ConfigurationError
from core_hivemind.errors import PeersError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S = 5
_PAUSE_S = 0.5


class Endpoint:
    """Serves the addresses of a peer by HTTP, one a line.

    Args:
        place: `"host:port"` to listen at.
        addresses: of the peer.
    """

    def __init__(self, place: str, addresses: Sequence[str]) -> None:
        text = "\n".join(addresses).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        try:
            self._server = ThreadingHTTPServer(split(place, "endpoint"), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"endpoint={place!r}: {error}. Name a free port, and an address of this machine."
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def ask(place: str, *, timeout_s: float) -> tuple[str, ...]:
    """The addresses that a peer's endpoint serves; waits until it is there.

    Raises:
        PeersError: it didn't come in time.
    """
    host, port = split(place, "peer_endpoint")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/", timeout=_TIMEOUT_S) as answer:
                return tuple(answer.read().decode().split())
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeersError(
                    f"peer_endpoint={place!r} did not answer within {timeout_s:g} s: {error}. "
                    f"Start a peer with endpoint='0.0.0.0:{port}' there, or pass initial_peers."
                ) from error
        time.sleep(_PAUSE_S)


def split(place: str, option: str) -> tuple[str, int]:
    """Host and port of `"host:port"`.

    Raises:
        ConfigurationError: it isn't of that form.
    """
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{option}={place!r}: expected 'host:port', such as '10.0.0.1:1440'."
        )
    return host, int(port)
