"""The place of the simulated devices: the variables of a process that has them."""

import os
from pathlib import Path

HERE = Path(__file__).parent
SIMULATOR = HERE / "simulator"


def variables(num_devices=2, lazy=True):
    """The environment of a machine with simulated Gaudi devices, and the vendor's library for
    them.
    """
    before = os.environ.get("PYTHONPATH")
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(SIMULATOR / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(SIMULATOR), str(HERE), *filter(None, [before])]),
        "PT_HPU_LAZY_MODE": str(int(lazy)),
        "SIMULATED_GAUDI_DEVICES": str(num_devices),
    }
