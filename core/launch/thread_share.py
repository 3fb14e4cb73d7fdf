"""Share the processor's cores among the processes of a node."""

from __future__ import annotations

import os


def share_cores(num_processes: int) -> None:
    """Give this process its share of the cores, unless the user has chosen with `OMP_NUM_THREADS`.

    Otherwise each process starts a thread for every core, and on a CPU they slow each other down
    many times over.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // num_processes)))
