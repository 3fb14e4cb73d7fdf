"""One bit is flipped, at places all over what was saved, one at a time; what then loads is compared
with it.
"""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import torch
from others.processes import Failure, forked
from others.states import PLACES, trained
from rich.table import Table

NUM_FLIPS = 40
OUTCOMES = ("refused", "right all the same", "wrong without a word")


def flip(folder: Path, whole: Path, number: int) -> None:
    """Make `folder` what `whole` is, but for a bit."""
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    files = [(file, file.stat().st_size) for file in sorted(folder.rglob("*")) if file.is_file()]
    offset = (2 * number + 1) * sum(size for _, size in files) // (2 * NUM_FLIPS)
    for file, size in files:
        if offset < size:
            content = bytearray(file.read_bytes())
            content[offset] ^= 0b100
            file.write_bytes(content)
            return
        offset -= size


def fates(name: str, folder: Path) -> Counter[str]:
    """Count what becomes of a checkpoint of which one bit has flipped."""
    state, outcomes = PLACES[name](folder, *trained(1, 180)), Counter[str]()
    state.save()
    expected = [tensor.clone() for tensor in state.tensors()]
    shutil.copytree(folder, whole := folder.with_name(f"{folder.name}-whole"))
    for number in range(NUM_FLIPS):
        flip(folder, whole, number)
        state.fill(0)
        try:
            state.load()
        except Exception:
            outcomes[OUTCOMES[0]] += 1
        else:
            same = all(map(torch.equal, state.tensors(), expected))
            outcomes[OUTCOMES[1] if same else OUTCOMES[2]] += 1
    return outcomes


def compare_damage() -> Table:
    table = Table(f"one bit flipped, {NUM_FLIPS} times", *OUTCOMES)
    with tempfile.TemporaryDirectory() as root:
        for name in PLACES:
            (folder := Path(root) / name).mkdir()
            (counted,) = forked(lambda name=name, folder=folder: fates(name, folder))
            table.add_row(
                name,
                *(
                    (str(counted),)
                    if isinstance(counted, Failure)
                    else (str(counted[outcome]) for outcome in OUTCOMES)
                ),
            )
    return table
