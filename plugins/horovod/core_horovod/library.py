"""The only place that imports Horovod: nothing of it is imported before a process is about to train
with it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.registry import import_library

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECIPE = """\
Horovod 0.28.1 has no wheels, and asks for C++14, with which today's torch can't be compiled. It builds unchanged \
with a wrapper around the compiler, on Linux, with cmake 3 and g++, in about 4 minutes, for the torch that is there; \
without a GPU take torch for CPUs, as pytorch.org describes:

    cat > cxx20 <<'W'
    #!/bin/bash
    args=()
    for a in "$@"; do
        case "$a" in -std=c++11|-std=c++14|-std=gnu++11|-std=gnu++14) a=-std=c++20 ;; esac
        args+=("$a")
    done
    exec g++ "${args[@]}"
    W
    chmod +x cxx20
    pip install torch==2.13.0
    pip install "setuptools>=77.0.3,<81" wheel cloudpickle psutil pyyaml packaging cffi
    CXX=$PWD/cxx20 MAKEFLAGS=-j2 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \\
        HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \\
        pip install --no-cache-dir --no-build-isolation --no-deps --no-binary horovod horovod==0.28.1
"""  # noqa: E501


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Distinguish the end of another rank from other errors of Horovod.

    Raises:
        ConnectionError: another rank has ended. By this type, launchers look for the one that
            failed first.
    """
    errors = load("horovod.common.exceptions")
    try:
        yield
    except errors.HorovodInternalError as error:
        if not re.search(r"shut down|connection|gloo", str(error), re.IGNORECASE):
            raise
        raise ConnectionError(
            f"Connection closed: another rank has ended Horovod. {error}"
        ) from error


def load(name: str = "horovod.torch") -> Any:
    """A module of Horovod with its part for torch, or of what it requires; see `import_library`."""
    return import_library(name, user="strategy='horovod'", install=_RECIPE)
