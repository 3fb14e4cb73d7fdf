"""The simulated PopTorch is there for the tests of this folder, and gone for all others."""

import sys
from pathlib import Path

import pytest

SIMULATOR = str(Path(__file__).parent / "simulator")


@pytest.fixture(autouse=True, scope="module")
def simulator():
    """The module that `import poptorch` finds."""
    sys.path.insert(0, SIMULATOR)
    yield SIMULATOR
    sys.path.remove(SIMULATOR)
    for name in [name for name in sys.modules if name.split(".")[0] == "poptorch"]:
        del sys.modules[name]
