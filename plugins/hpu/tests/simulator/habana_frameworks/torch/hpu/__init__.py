"""`import habana_frameworks.torch.hpu`, which torch calls `torch.hpu`.

"Intel Gaudi PyTorch Python API (habana_frameworks.torch)",
docs.habana.ai/en/latest/PyTorch/Reference/Python_Packages.html. The signatures are those of the
vendor's published source, github.com/HabanaAI/gaudi-pytorch-bridge, of which the page is made. A
process has one device: "Gaudi-to-process Assignment",
docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html.
"""

import os as _os

from simulated_gaudi import random_numbers as _random_numbers
from simulated_gaudi import undocumented as _undocumented
from simulated_gaudi.memory import memory as _memory

import torch as _torch

_NUM_DEVICES = int(_os.environ["SIMULATED_GAUDI_DEVICES"])


def is_available():
    return _NUM_DEVICES > 0


def device_count():
    return _NUM_DEVICES


def current_device():
    return 0


def set_device(device):
    if _index_of(device) != 0:
        raise AssertionError(
            "As HABANA_VISIBLE_MODULES is not provided, the only supported device idx is 0."
        )


def synchronize():
    """Wait for the device. What was launched is done here; what waits in the graph isn't launched
    by it.
    """


def memory_stats(device=None):
    _index_of(device)
    return _memory.stats()


def get_rng_state(device="hpu"):
    _index_of(device)
    return _random_numbers.get_state()


def set_rng_state(new_state, device="hpu"):
    _index_of(device)
    _random_numbers.set_state(new_state)


def manual_seed_all(seed):
    _random_numbers.seed_with(int(seed))


def _index_of(device):
    index = device if isinstance(device, int | None) else _torch.device(device).index
    if index:
        raise RuntimeError(f"device {device}: a process has one device, hpu:0")
    return 0


# What torch asks of the module of any device type, documented by torch:
# `torch.utils.rename_privateuse1_backend`.


def is_initialized():
    return True


def _is_in_bad_fork():
    return False


def get_amp_supported_dtype():
    """Of "Mixed Precision Training with PyTorch Autocast": lower precision is bfloat16."""
    return [_torch.bfloat16]


def _lazy_init():
    """Nothing has to be prepared."""


__getattr__ = _undocumented(__name__)
