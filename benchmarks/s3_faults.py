"""Two ranks save to a real server that speaks S3, whose every answer fails in turn.

    PYTHONPATH=tests python benchmarks/s3_faults.py [STRIDE]

Of each kind of fault every STRIDE-th answer fails, beginning with another one, and a line is
printed: one answer that fails is asked for again, and a store that stays away fails a save. A save
that says that it has failed has left what was there. With 3 it takes a minute and a half; core's
own part is in `tests/checkpoint/test_two_ranks_survive.py`.
"""

import contextlib
import itertools
import logging
import os
import socket
import sys
import threading
import time

import fsspec
import s3fs
from moto.moto_server.werkzeug_app import create_backend_app
from moto.server import DomainDispatcherApplication, MotoRequestHandler
from werkzeug.serving import make_server

from checkpoint.steps import loaded_step, save, state
from checkpoint.test_two_ranks_survive import Url, check_told, save_together
from core.checkpoint import DistributedCheckpointIO
from core.contract import CheckpointError
from support.checkpoint_collectives import Alone

READ_TIMEOUT_S = 1.0
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Faulty:
    """The server's program, which lets its n-th request fail in the way that is asked for.

    moto changes plain dicts while other threads go over them, and answers that with a 500: one
    request at a time.
    """

    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self.keeps_all = False
        self.arm("", 0)

    def arm(self, kind, number, *, lasts=False):
        self.kind, self._left, self._lasts, self.has_struck = kind, number, lasts, False

    def _is_due(self):
        with self._lock:
            self._left -= 1
            due = self._left == 0 or (self._lasts and self._left < 0)
            self.has_struck |= due
            return due and bool(self.kind)

    def __call__(self, environ, start_response):
        deletes = (
            environ["REQUEST_METHOD"] == "DELETE"
            or environ.get("QUERY_STRING", "").partition("=")[0] == "delete"
        )
        refuses = self.keeps_all and deletes
        if not self._is_due() and not refuses:
            return self._answer(environ, start_response)
        if refuses or self.kind == "throttled":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [SLOW_DOWN]
        if self.kind == "half an upload":  # of which the server has nothing
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
        else:
            answer = self._answer(environ, start_response)
            if self.kind == "too late an answer":
                time.sleep(READ_TIMEOUT_S + 0.3)
                return answer
        with contextlib.suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start_response("500 Cut Off", [("Connection", "close")])  # which nobody hears
        return [b""]

    def _answer(self, environ, start_response):
        with self._turn:
            return list(self._app(environ, start_response))


@contextlib.contextmanager
def served():
    faulty = Faulty()
    server = make_server("127.0.0.1", 0, faulty, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fsspec.config.conf["s3"] = {
        "endpoint_url": f"http://127.0.0.1:{server.server_address[1]}",
        "key": "anybody",
        "secret": "anything",
        "default_block_size": 5 << 20,
        "config_kwargs": {
            "read_timeout": READ_TIMEOUT_S,
            "connect_timeout": 5,
            "retries": {"max_attempts": 0},
        },
    }
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    s3fs.S3FileSystem.retries = 2
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    fsspec.filesystem("s3").mkdir("bucket")
    try:
        yield faulty
    finally:
        server.shutdown()


def each_answer(faulty, kind, numbers, *, lasts=False):
    """Save, while the answers of these numbers fail one after the other, until there are no more;
    how many saves failed, and how many did not."""
    path, outcomes = Url(f"s3://bucket/{kind.replace(' ', '-')}{lasts}/last.ckpt"), [0, 0]
    for number in numbers:
        assert save_together(path, 1) == ["", ""], "what failed is in the way of the next save"
        faulty.arm(kind, number, lasts=lasts)
        answers = save_together(path, 2)
        has_struck = faulty.has_struck
        faulty.arm("", 0)
        if not has_struck:
            assert (answers, loaded_step(path)) == (["", ""], 2)
            return outcomes
        check_told(answers, loaded_step(path), has_struck)
        outcomes[not answers[0]] += 1
    raise AssertionError("numbers end before the answers do")


def uploads_in_parts(faulty, numbers):
    """One process; a file is more than one part, and each part is cut off in turn."""
    path, failed = Url("s3://bucket/parts/last.ckpt"), 0
    storage = DistributedCheckpointIO()
    storage.save_checkpoint(state(1, 1_400_000), path, collectives=Alone())
    for number in numbers:
        faulty.arm("half an upload", number, lasts=True)
        step = 2
        try:
            storage.save_checkpoint(state(2, 1_400_000), path, collectives=Alone())
        except CheckpointError:
            failed, step = failed + 1, 1
        has_struck = faulty.has_struck
        faulty.arm("", 0)
        found = loaded_step(path)
        assert found == step or (found == 2 and step == 1 and number > 8), (number, found, step)
        if not has_struck:
            return failed
        if found == 2:
            storage.save_checkpoint(state(1, 1_400_000), path, collectives=Alone())
    raise AssertionError("numbers end before the parts do")


def kept_generations(faulty):
    """Two saves beside which the store deletes nothing, and one that may again; the files after
    each save.
    """
    path, store, numbers = Url("s3://bucket/generations/last.ckpt"), fsspec.filesystem("s3"), []
    for step, faulty.keeps_all in ((1, False), (2, True), (3, True), (4, False)):
        save(path, step)
        store.invalidate_cache()
        numbers.append(len(store.ls(path)))
        assert loaded_step(path) == step
    return numbers


def main(stride):
    with served() as faulty:
        for place, (kind, lasts) in enumerate(
            (
                ("throttled", False),
                ("throttled", True),
                ("too late an answer", False),
                ("half an upload", False),
                ("lost answer", True),
            )
        ):
            numbers = itertools.count(1 + place % stride, stride)
            failed, succeeded = each_answer(faulty, kind, numbers, lasts=lasts)
            print(
                f"{kind}{' from then on' if lasts else ''}: {failed} saves failed, {succeeded} did "
                "not",
                flush=True,
            )
        print(
            f"uploads in parts: {uploads_in_parts(faulty, itertools.count(1, stride))} saves "
            "failed",
            flush=True,
        )
        print(
            f"files beside which nothing could be deleted: {kept_generations(faulty)}", flush=True
        )


if __name__ == "__main__":
    sys.setswitchinterval(0.001)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
