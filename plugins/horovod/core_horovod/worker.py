"""`python -m core_horovod.worker FOLDER`: a rank's whole life."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from core.launch import LaunchedCall, write_result
from core_horovod import library


def main() -> None:
    """Call the function, and leave its result or its error in the folder."""
    folder, rank = Path(sys.argv[1]), int(os.environ["HOROVOD_RANK"])
    signal.signal(signal.SIGTERM, _end)
    try:
        _work(folder, rank)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
        (folder / f"writing-{rank}").write_text(text)
        (folder / f"writing-{rank}").rename(folder / f"error-{rank}")
        sys.exit(1)


def _work(folder: Path, rank: int) -> None:
    import torch

    place = torch.load(folder / "call-place", weights_only=False)  # our main process's own files
    sys.path[:], sys.argv[:] = place["path"], place["argv"]
    call, size = LaunchedCall.read(folder / "call"), int(os.environ["HOROVOD_SIZE"])
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    outcome = call.run(world_size=size, global_rank=rank, local_rank=rank, node_rank=0)
    if rank == 0:
        write_result(outcome, folder / "result", pickle_module=library.load("cloudpickle"))


def _end(signum: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `finally` blocks run once
    sys.exit(128 + signum)


if __name__ == "__main__":
    main()
