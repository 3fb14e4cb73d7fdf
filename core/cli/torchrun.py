"""torchrun as `core run` starts it: a failed rank has shown its own error, so that a line about its end is enough.

python -m core.cli.torchrun --standalone --nproc-per-node 2 train.py
"""

from __future__ import annotations

import logging
import os
import sys

from core.cli.layout import say
from core.launch.worker_failure import describe_exit

_REPEATING = (
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.multiprocessing.errors.error_handler",
)
"""Loggers of torchrun that warn of the threads of a rank, and repeat how each has ended, in several lines."""


def main(arguments: list[str]) -> int:
    """Run torchrun. Its own warnings and tracebacks are left out, unless LOGLEVEL asks for them.

    Args:
        arguments: those of torchrun.

    Returns:
        The code to exit with: 1 if a rank has failed, 128 and a signal's number if that has ended the run.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if "LOGLEVEL" in os.environ:
        run.main(arguments)
        return 0
    for name in _REPEATING:
        logging.getLogger(name).addFilter(lambda record: False)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        ended = f"Rank {rank} (pid {failure.pid}) {describe_exit(failure.exitcode)}"
        say(f"core run: {ended}, and the run with it.", err=True)
        return 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
