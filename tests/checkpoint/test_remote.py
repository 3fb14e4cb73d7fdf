"""Checkpoints behind fsspec: in memory, and on a real server that speaks S3."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from checkpoint.remote_checks import CHECKS

PROGRAM = Path(__file__).with_name("remote_checks.py")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_in_memory(check, tmp_path):
    filesystem = fsspec.filesystem("memory")
    try:
        check("memory://run", tmp_path)
    finally:
        if filesystem.exists("/run"):
            filesystem.rm("/run", recursive=True)


@contextmanager
def server(folder):
    """Address of a server on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_on_a_server_that_speaks_s3(tmp_path):
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with server(tmp_path) as address:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_ENDPOINT_URL": address,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [sys.executable, str(PROGRAM), "s3://bucket", str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [check.__name__ for check in CHECKS]
