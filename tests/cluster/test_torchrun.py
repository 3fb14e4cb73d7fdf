"""The real torchrun."""

import re
import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed.constants import default_pg_timeout

from core import ConfigurationError, Session, WorkerError
from core.cluster import TorchElasticEnvironment, reserve_port
from core.strategies import ParallelStrategy
from core.strategies.rendezvous import timeout
from core_testing import programs
from core_testing.waiting import slowness


@pytest.mark.slow
def test_a_restarted_group_finds_itself(run, script, torchrun):
    """The agent's store outlives the group that died, and so do the addresses in it."""
    lines = run(
        *torchrun,
        "--standalone",
        "--nproc-per-node",
        2,
        "--max-restarts",
        1,
        script,
        2,
        1,
        "--die-once",
    )
    assert lines == [
        f"TorchElasticEnvironment rank {rank} of 2 node 0 local {rank} restart 1 sum 3"
        for rank in (0, 1)
    ]


@pytest.mark.slow
def test_a_rank_that_has_left_is_named_by_those_who_would_wait_for_it(tmp_path, torchrun):
    leaves = """
import core

fabric = core.Fabric(strategy="ddp", accelerator="cpu", devices=2)
fabric.launch()
if fabric.global_rank == 1:
    raise SystemExit(0)
fabric.teardown()
fabric.launch()
"""
    (tmp_path / "script.py").write_text(leaves)
    command = [*torchrun, "--standalone", "--nproc-per-node", "2", str(tmp_path / "script.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200 * slowness(), check=False
    )
    assert done.returncode == 1
    assert (
        "WorkerError: Rank 1 ended the program without reaching the start of the process group"
        in done.stderr
    )


def rank_of(num_ranks):
    """The strategy of a rank that torchrun has started, and that waits a second for the others."""
    strategy = ParallelStrategy(
        process_group_backend="gloo",
        timeout=timedelta(seconds=1),
        parallel_devices=[torch.device("cpu")] * num_ranks,
        cluster_environment=TorchElasticEnvironment(),
    )
    Session(strategy)
    return strategy


def test_ranks_that_never_come_are_named_when_the_time_is_over(monkeypatch, caplog):
    monkeypatch.setattr(timeout, "WARN_AFTER_S", 0.2)
    port = reserve_port(monkeypatch)
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_PORT": str(port),
    }
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    strategy = rank_of(3)
    with pytest.raises(WorkerError) as raised:
        strategy.setup_distributed()
    assert str(raised.value) == (
        "Ranks 1, 2 did not reach the start of the process group within 0:00:01, and rank 0 "
        "waited. All ranks must make the same calls: look for a rank that has ended, hangs, or "
        "takes another way."
    )
    assert raised.value.rank == 1
    assert [record.getMessage() for record in caplog.records] == [
        "Ranks 1, 2 did not reach the start of the process group within 0.2 s, and rank 0 waits "
        "there (phase set-up). The wait ends with an error after 0:00:01; the strategy's timeout= "
        "changes that. Look for a rank that has ended, hangs, or is still at work."
    ]
    assert timeout.meets_within(default_pg_timeout) == timedelta(minutes=10)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_PORT", str(reserve_port(monkeypatch)))
    caplog.clear()
    place = r"at 127\.0\.0\.1:\d+ \(MASTER_ADDR and MASTER_PORT: are they rank 0's\?\)"
    with pytest.raises(
        WorkerError,
        match=rf"Rank 0 did not reach the start of the process group {place} within 0:00:01, and "
        r"rank 1",
    ):
        strategy.setup_distributed()
    (warned,) = [record.getMessage() for record in caplog.records]
    assert re.match(
        rf"Rank 0 did not reach the start of the process group {place} within 0\.2 s, and rank 1 "
        r"waits there .* "
        r"The wait ends with an error after 0:00:01;",
        warned,
    )


@pytest.mark.slow
def test_what_torch_says_of_another_programs_port_is_not_the_last_of_it(tmp_path):
    another_program = """
import atexit, os, socket, threading, time
from core import Fabric
from core.strategies.rendezvous import connections

def answer():
    while True:
        line, _ = listener.accept()
        line.sendall(b"HTTP/1.1 400 Bad Request")
        line.close()

listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=answer, daemon=True).start()
connections.CONNECT_S = 1.0
atexit.register(time.sleep, 3)  # what torch writes later would be seen
os.environ |= {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
os.environ["MASTER_PORT"] = str(listener.getsockname()[1])
Fabric(strategy="ddp", accelerator="cpu", devices=2).launch()
"""
    (tmp_path / "script.py").write_text(another_program)
    done = programs.run([sys.executable, "script.py"], cwd=tmp_path, timeout=100)
    assert done.returncode == 1
    assert (
        "what listens there doesn't answer as torch's store does" in done.stderr.splitlines()[-1]
    ), done.stderr


@pytest.mark.parametrize(
    ("rank", "listens", "address", "expected"),
    [
        (
            0,
            True,
            "127.0.0.1",
            "Rank 0 can't listen at port .*EADDRINUSE.*set MASTER_PORT to another port",
        ),
        (
            0,
            False,
            "255.255.255.255",
            "can't reach it at the address '255.255.255.255'.*Set MASTER_ADDR to an address",
        ),
        (
            1,
            True,
            "127.0.0.1",
            "what listens there doesn't answer as torch's store does: MASTER_ADDR or MASTER_PORT "
            "is",
        ),
    ],
)
def test_an_address_or_port_that_is_no_store_of_this_run(
    rank, listens, address, expected, monkeypatch
):
    with socket.socket() as other:
        other.bind(("", 0))
        if listens:
            other.listen()  # and never accepts
        for name, value in {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": 2,
        }.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", address)
        monkeypatch.setenv(
            "MASTER_PORT", str(other.getsockname()[1] if listens else reserve_port(monkeypatch))
        )
        strategy = rank_of(2)
        with pytest.raises(ConfigurationError, match=expected):
            strategy.setup_distributed()
    # torch writes pages when its peer ends: while the test still captures them
    for thread in threading.enumerate():
        if thread.name == "connect to the store":
            thread.join()
