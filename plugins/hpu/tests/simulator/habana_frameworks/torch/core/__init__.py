"""`import habana_frameworks.torch.core as htcore`."""

import habana_frameworks.torch.hpu as _hpu
from simulated_gaudi import autocast as _autocast
from simulated_gaudi import device as _device
from simulated_gaudi import graph as _graph
from simulated_gaudi import undocumented as _undocumented
from simulated_gaudi import weight_sharing as _weight_sharing

_device.register(_hpu)
_autocast.register()
_weight_sharing.register()


def mark_step(device_str="", sync=False):
    """Launch what was accumulated.

    "mark_step", docs.habana.ai/en/latest/PyTorch/Reference/mark_step.html, which has both
    parameters. In eager mode nothing is ever accumulated.
    """
    _graph.launch("mark_step")


__getattr__ = _undocumented(__name__)
