"""Connections of native code: seen without reading from them."""

import os
import socket
import struct

import pytest

from core.launch.connections import StoreConnections


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connect(server):
    """Both ends of a connection to the server; this side's as native code has it, without an object
    of Python's.
    """
    here = socket.create_connection(server.getsockname()).detach()
    return here, server.accept()[0]


def test_a_store_is_hung_up_once_its_process_has_closed_all_connections(server):
    port = server.getsockname()[1]
    ends = [connect(server), connect(server)]
    connections = StoreConnections(port)
    later = connect(server)
    try:
        assert not connections.are_hung_up()
        ends[0][1].close()  # of an earlier group, perhaps
        assert not connections.are_hung_up()
        ends[1][1].sendall(b"a")
        ends[1][1].close()
        assert not connections.are_hung_up()  # there is something to read yet
        assert os.read(ends[1][0], 1) == b"a"
        assert connections.are_hung_up()
    finally:
        later[1].close()
        for here, _ in (*ends, later):
            os.close(here)
    assert not connections.are_hung_up()


def test_a_connection_that_was_reset_is_hung_up(server):
    here, there = connect(server)
    connections = StoreConnections(server.getsockname()[1])
    there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there.close()
    try:
        assert connections.are_hung_up()
    finally:
        os.close(here)


def test_others_are_no_connections_to_the_store(server):
    here, there = connect(server)
    connections = StoreConnections(1)
    there.close()
    try:
        assert not connections.are_hung_up()
    finally:
        os.close(here)


def test_looking_leaves_no_descriptor_open(server):
    before = os.listdir("/dev/fd")
    for _ in range(3):
        StoreConnections(1).are_hung_up()
    assert os.listdir("/dev/fd") == before
