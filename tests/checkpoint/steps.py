"""Checkpoints of numbered steps, whole or not at all, and a process that dies while it writes
one.
"""

import os
import signal
import sys

import torch

import core.checkpoint
from core.checkpoint import DistributedCheckpointIO, load_checkpoint, verify_checkpoint
from support.checkpoint_collectives import Alone

ALONE = Alone()
VALUES = 2_000
OF_STORAGE = os.path.dirname(core.checkpoint.__file__) + os.sep
CHANGES = {
    "open",
    "write",
    "flush",
    "close",
    "fsync",
    "flock",
    "mkdir",
    "replace",
    "rename",
    "unlink",
    "truncate",
}
"""Names of the calls into the system before which a process is killed."""


def state(step, values=VALUES):
    return {
        "step": step,
        "x": torch.full((values,), float(step)),
        "y": torch.full((values,), -float(step)),
    }


def save(path, step, kind=DistributedCheckpointIO, collectives=ALONE):
    kind().save_checkpoint(state(step), path, collectives=collectives)


def loaded_step(path):
    """The step of the checkpoint, which is whole and has been verified."""
    loaded = load_checkpoint(path)
    expected = state(loaded["step"], len(loaded["x"]))
    assert torch.equal(loaded["x"], expected["x"])
    assert torch.equal(loaded["y"], expected["y"])
    verify_checkpoint(path)
    return loaded["step"]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


class Meanwhile(Alone):
    """Does something else in each pause of a save, which is where another program comes in."""

    def __init__(self, work):
        self.work, self.num_pauses = work, 0

    def broadcast_object(self, obj, src=0):
        self.num_pauses += 1
        self.work()
        return obj


def dies_before_call(number, work):
    """Run `work` in a copy of this process that kills itself before its n-th change of a file.

    Returns whether it got that far.
    """
    process = os.fork()
    if process == 0:
        status = 1
        try:
            kill_before_call(number)
            work()
            status = 0
        finally:
            os._exit(status)
    _, outcome = os.waitpid(process, 0)
    assert os.WIFSIGNALED(outcome) or os.WEXITSTATUS(outcome) == 0
    return os.WIFSIGNALED(outcome)


def kill_before_call(number):
    """Let this process kill itself before its n-th change of a file from now on."""
    left = number

    def count(frame, event, function):
        nonlocal left
        if event != "c_call" or function.__name__ not in CHANGES:
            return
        if function.__module__ == "posix" or frame.f_code.co_filename.startswith(OF_STORAGE):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
