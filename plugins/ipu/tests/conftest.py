"""The simulated PopTorch is there for the tests of this folder, and gone for all others."""

import sys
from pathlib import Path

import pytest
import torch

SIMULATOR = str(Path(__file__).parent / "simulator")


class Gone:
    """The base of the simulator's optimizers when it is gone: torch's own would still name them as
    subclasses.
    """


@pytest.fixture(autouse=True, scope="module")
def simulator():
    """The module that `import poptorch` finds."""
    sys.path.insert(0, SIMULATOR)
    yield SIMULATOR
    sys.path.remove(SIMULATOR)
    for kind in set(subclasses(torch.optim.Optimizer)):
        if kind.__module__.startswith("poptorch."):
            kind.__bases__ = (Gone,)
    for name in [name for name in sys.modules if name.split(".")[0] == "poptorch"]:
        del sys.modules[name]


def subclasses(kind):
    for each in kind.__subclasses__():
        yield from subclasses(each)
        yield each
