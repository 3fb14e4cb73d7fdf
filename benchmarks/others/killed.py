"""A program saves again and again to the place that it resumes from, and is killed by SIGKILL at a
random moment.

Every trial begins with a whole checkpoint. Weights and moments hold one and the same number,
another one in each save, so that a mixture of two saves shows. What is there afterwards is loaded
by the call by which one resumes.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from others.processes import FORK, Failure, forked
from others.states import (
    Place,
    State,
    by_accelerate,
    by_accelerate_numbered,
    by_core,
    by_hand,
    by_lightning,
    trained,
)
from rich.table import Table

NUM_LAYERS, WIDTH = 4, 512
OTHER_FILE_SYSTEM = "/dev/shm"
OUTCOMES = ("whole", "refused, the one before whole", "refused", "wrong without a word")
WAYS: dict[str, tuple[Place, str | None]] = {
    "core, Fabric.save": (by_core, None),
    "Lightning, Fabric.save": (by_lightning, None),
    "the same, $TMPDIR on another file system": (by_lightning, OTHER_FILE_SYSTEM),
    "Accelerate, save_state(folder)": (by_accelerate, None),
    "the same, automatic_checkpoint_naming": (by_accelerate_numbered, None),
    "by hand, torch.save": (by_hand, None),
}


def save_for_ever(state: State, begins) -> None:
    number = 1
    begins.send(None)
    while True:
        number += 1
        state.fill(number)
        state.save()


def outcome(state: State, load: Callable[[], object]) -> str:
    state.fill(0)
    try:
        load()
    except Exception:
        return "refused"
    values = {value.item() for tensor in state.tensors() for value in (tensor.min(), tensor.max())}
    return "whole" if len(values) == 1 and values != {0.0} else "wrong without a word"


def fate(state: State) -> str:
    """The outcome of resuming from what is there, and if that is refused, from the one before."""
    newest = outcome(state, state.load)
    if newest == "refused" and state.load_older is not None:
        older = outcome(state, state.load_older)
        return f"{newest}, the one before {older}"
    return newest


def killed_once(place: Place, folder: Path, draw: random.Random) -> str:
    state = place(folder, *trained(NUM_LAYERS, WIDTH))
    state.fill(1)
    state.save()
    began = time.perf_counter()
    state.save()
    one_save_s = time.perf_counter() - began
    own, others = FORK.Pipe(duplex=False)
    writer = FORK.Process(target=save_for_ever, args=(state, others))
    writer.start()
    own.recv()
    time.sleep(draw.uniform(0, 4 * one_save_s))
    writer.kill()
    writer.join()
    return forked(lambda: fate(state))[0]


def killed_often(place: Place, temporary: str | None, num_kills: int) -> Counter[str]:
    outcomes = Counter[str]()
    with (
        tempfile.TemporaryDirectory() as root,
        tempfile.TemporaryDirectory(dir=temporary) as temporaries,
    ):
        tempfile.tempdir = temporaries
        for number in range(num_kills):
            (folder := Path(root) / str(number)).mkdir()
            # A process of its own, since a library may number what it has saved.
            outcomes[
                forked(
                    lambda folder=folder: killed_once(place, folder, random.Random(folder.name))
                )[0]
            ] += 1
            shutil.rmtree(folder)
    return outcomes


def compare_kills(num_kills: int) -> Table:
    table = Table(f"killed {num_kills} times while it saves", *OUTCOMES, "else")
    for name, (place, temporary) in WAYS.items():
        if temporary is None or os.path.isdir(temporary):
            (outcomes,) = forked(partial(killed_often, place, temporary, num_kills), limit_s=900)
            if isinstance(outcomes, Failure):
                outcomes = Counter({str(outcomes): num_kills})
            others = {what: count for what, count in outcomes.items() if what not in OUTCOMES}
            table.add_row(name, *(str(outcomes[each]) for each in OUTCOMES), str(others or ""))
    return table
