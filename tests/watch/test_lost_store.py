"""The store of the ranks ends before a rank does, with a process on another machine."""

import json
import multiprocessing
import socket
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from core.watch import WatchdogOptions, heartbeat
from core.watch.rank_status import RankStatus
from core.watch.watchdog import Watchdog

pytestmark = pytest.mark.skipif(not hasattr(socket, "MSG_DONTWAIT"), reason="the system has no such flag")


class SecondRank:
    """The second of two ranks, as the watch sees it."""

    global_rank, world_size, waits_in = 1, 2, ()


def serve(pipe):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first = replace(RankStatus(0, "computes"), host="another", machine="another", pid=1)
    PrefixStore("core/watch", store).set("run", json.dumps(["a run", first.to_text()]))
    pipe.send(store.port)
    pipe.recv()


@pytest.mark.slow
def test_a_rank_whose_store_is_gone_prints_no_page_about_it(tmp_path, capfd):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,))
    server.start()
    port = here.recv()
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    options = WatchdogOptions(limit=timedelta(seconds=12), folder=tmp_path)  # it asks every two seconds
    watchdog = Watchdog(options, store.clone(), SecondRank(), port)
    try:
        while watchdog.exchange.folder is None:  # until it has asked for the first rank
            time.sleep(0.05)
        server.kill()
        server.join()
        for _ in range(7):
            heartbeat.count += 1
            time.sleep(0.5)
    finally:
        server.kill()
        watchdog.close()
    assert "TCPStore" not in capfd.readouterr().err
