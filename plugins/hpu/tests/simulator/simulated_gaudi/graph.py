"""Lazy mode: operations wait in a graph, which is compiled and launched as a whole.

"PyTorch Gaudi Theory of Operations",
docs.habana.ai/en/latest/PyTorch/PyTorch_Gaudi_Theory_of_Operations.html: in lazy mode operations
are deferred and accumulated into a graph, whose execution is triggered only when a tensor's value
is required, or explicitly. "mark_step", docs.habana.ai/en/latest/PyTorch/Reference/mark_step.html:
what was accumulated is looked for in a cache, compiled if it isn't there, and launched. "Runtime
Environment Variables", docs.habana.ai/en/latest/PyTorch/Reference/Runtime_Flags.html:
`PT_HPU_LAZY_MODE` is 1 for lazy mode, 0 for eager mode. Unset is lazy in the vendor's published
source, github.com/HabanaAI/gaudi-pytorch-bridge 1.19, utils/internal.py:27, and here; in the newest
pages it is eager.
"""

import os
from typing import NamedTuple

import torch

IS_LAZY = os.environ.get("PT_HPU_LAZY_MODE", "1") != "0"  # read once, when the library is imported

_pending = []
_names = []
_compiled = set()


class Launch(NamedTuple):
    """One graph that was run: who asked (`"mark_step"`, `"value"`), of how many operations, and if
    it was compiled.
    """

    reason: str
    num_operations: int
    was_compiled: bool


launches: list[Launch] = []


def num_pending():
    """Number of operations that wait."""
    return len(_pending)


def add(name, operation):
    """Let an operation wait for the next launch; in eager mode, run it at once."""
    if not IS_LAZY:
        with torch.inference_mode():
            operation()
        return
    _pending.append(operation)
    _names.append(name)


def launch(reason):
    """Run what waits, in its order. Nothing happens if nothing does."""
    if not _pending:
        return
    key, operations = hash(tuple(_names)), list(_pending)
    _pending.clear()
    _names.clear()
    launches.append(Launch(reason, len(operations), key not in _compiled))
    _compiled.add(key)
    with torch.inference_mode():  # tensors of inference mode may be among those that are written to
        for operation in operations:
            operation()
