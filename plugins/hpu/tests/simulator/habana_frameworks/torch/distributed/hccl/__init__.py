"""`import habana_frameworks.torch.distributed.hccl` makes the process group `hccl` known.

"Distributed Backend Initialization",
docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Distributed_Backend_Initialization.html, and
"Gaudi-to-process Assignment",
docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html. The import
initializes, as in the vendor's published source, github.com/HabanaAI/gaudi-pytorch-bridge 1.19,
distributed/hccl/__init__.py:59-81 and 113.
"""

import os as _os

import habana_frameworks.torch.core  # noqa: F401
from simulated_gaudi import process_group as _process_group
from simulated_gaudi import undocumented as _undocumented

_process_group.register()


def initialize_distributed_hpu(world_size=None, rank=None, local_rank=None):
    """Set the variables that a custom launcher hasn't, or read those that torchrun or mpirun has
    set.

    The module of this process is the one at the place of its local rank in
    `HABANA_VISIBLE_MODULES`, or has the number of the local rank.
    """
    given = {"WORLD_SIZE": world_size, "RANK": rank, "LOCAL_RANK": local_rank}
    if all(value is not None for value in given.values()):
        _os.environ.update({name: str(value) for name, value in given.items()})
    else:
        _take_what_mpirun_says()
    size, number, local = (int(_os.environ.get(name, default)) for name, default in _UNSET.items())
    if local >= 0 and size > 1 and "HLS_MODULE_ID" not in _os.environ:
        visible = _os.environ.get("HABANA_VISIBLE_MODULES")
        _os.environ["HLS_MODULE_ID"] = str(local) if visible is None else visible.split(",")[local]
    if number != -1:
        _os.environ["ID"] = str(number)
    return size, number, local


def _take_what_mpirun_says():
    """Fill in the ranks, and where they meet: one port for all runs of a machine."""
    if _UNSET.keys() <= _os.environ.keys():
        return
    if _OF_MPIRUN.keys() <= _os.environ.keys():
        _os.environ.update({name: _os.environ[told] for told, name in _OF_MPIRUN.items()})
    _os.environ.setdefault("MASTER_ADDR", "localhost")
    _os.environ.setdefault("MASTER_PORT", "12345")


_OF_MPIRUN = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "RANK",
}
_UNSET = {"WORLD_SIZE": "1", "RANK": "-1", "LOCAL_RANK": "-1"}
initialize_distributed_hpu()
__getattr__ = _undocumented(__name__)
