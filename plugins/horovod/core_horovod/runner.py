"""`python -m core_horovod.runner FOLDER NUMBER`: `horovodrun` for the ranks of one launch on this
machine.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

from core_horovod import library
from core_horovod.launcher import ENDED


def main() -> None:
    """Run the ranks. The exit code is 1 if one fails."""
    folder, number = Path(sys.argv[1]), sys.argv[2]
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    horovodrun = library.load("horovod.runner.launch")
    sys.argv = [
        "horovodrun",
        "--gloo",
        "--disable-cache",
        "--network-interfaces",
        _loopback(),
        "-np",
        number,
        "-H",
        f"localhost:{number}",
        sys.executable,
        "-m",
        "core_horovod.worker",
        str(folder),
    ]
    try:
        horovodrun.run_commandline()
    except RuntimeError as error:  # only its message has the rank
        if found := re.search(r"Process name: (\d+)\s+Exit code: (\d+)", str(error)):
            (folder / ENDED).write_text(" ".join(found.groups()))
        else:
            sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _end_with_the_launcher() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock a forked child of this process would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _loopback() -> str:
    found = library.load("psutil").net_if_addrs()
    return next(
        str(name)
        for name, places in found.items()
        if any(place.address == "127.0.0.1" for place in places)
    )


if __name__ == "__main__":
    main()
