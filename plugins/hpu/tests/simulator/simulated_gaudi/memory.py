"""Bytes of the device's memory that tensors hold.

The names are those of `torch.hpu.memory_stats`: "Intel Gaudi PyTorch Python API
(habana_frameworks.torch)", docs.habana.ai/en/latest/PyTorch/Reference/Python_Packages.html; what
each counts stands in the vendor's published source, github.com/HabanaAI/gaudi-pytorch-bridge, and
in "HPUAccelerator",
lightning.ai/docs/pytorch/LTS/api/pytorch_lightning.accelerators.HPUAccelerator.html.
"""

LIMIT_BYTES = 96 * 2**30


class _Memory:
    """The device's memory."""

    in_use = peak = 0

    def stats(self):
        return {"Limit": LIMIT_BYTES, "InUse": self.in_use, "MaxInUse": self.peak}


memory = _Memory()


class Allocation:
    """A piece of the device's memory, which lives as long as a tensor, or a view of it."""

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes
        memory.in_use += num_bytes
        memory.peak = max(memory.peak, memory.in_use)

    def __del__(self):
        memory.in_use -= self.num_bytes
