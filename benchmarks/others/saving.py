"""The cost of saving weights and Adam's moments, and of loading them into the model and the Adam
that are running.

CPU time of the whole process and all of its threads, contenders in turns: the least of each over
the least of `torch.save`, or of `torch.load` with `load_state_dict`.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from others.states import PLACES, State, trained
from rich.table import Table

NUM_LAYERS, WIDTH = 8, 1024


def cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def compare_saving(num_rounds: int) -> Table:
    with tempfile.TemporaryDirectory() as root:
        states: dict[str, State] = {}
        for name, place in PLACES.items():
            (folder := Path(root) / name).mkdir()
            states[name] = place(folder, *trained(NUM_LAYERS, WIDTH))
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in states}
        for _ in range(num_rounds + 1):
            for name, state in states.items():
                rounds[name].append((cpu_s(state.save), cpu_s(state.load)))
        size = sum(tensor.nbytes for tensor in states["by hand"].tensors()) / 2**20
    table = Table(
        f"{size:.0f} MiB, {num_rounds} rounds", "save, CPU ms", "ratio", "load, CPU ms", "ratio"
    )
    # The first round has taken memory and imported what wasn't there.
    least = {
        name: [min(column) for column in zip(*rows[1:], strict=True)]
        for name, rows in rounds.items()
    }
    for name, own in least.items():
        ratios = [f"{s / base:.2f}" for s, base in zip(own, least["by hand"], strict=True)]
        table.add_row(name, f"{own[0] * 1e3:.0f}", ratios[0], f"{own[1] * 1e3:.0f}", ratios[1])
    return table
