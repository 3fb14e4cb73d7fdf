"""A port that is reserved for the store of the ranks: nobody else gets it before the store listens
there.
"""

import socket

import pytest
from torch.distributed import TCPStore

from core.cluster import LocalEnvironment, reserve_port


def bind(port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_only_the_store_gets_a_reserved_port():
    environment = LocalEnvironment()
    port = environment.main_port
    with pytest.raises(OSError, match="in use"):
        bind(port)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    TCPStore("127.0.0.1", port).set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_reservation_ends_with_its_owner(host):
    class Owner:
        pass

    owner = Owner()
    port = reserve_port(owner, host)
    with pytest.raises(OSError, match="in use"):
        bind(port)
    del owner
    bind(port)
