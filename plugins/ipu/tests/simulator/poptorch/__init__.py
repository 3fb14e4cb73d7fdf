"""A simulated PopTorch: the vendor's documented interface, computed on the CPU. For tests of
core-ipu only.

Written from the vendor's documentation and, where that is silent, from the vendor's public sources;
never from the plugin. Each behaviour names its page:

- [options]    "API reference",
  docs.graphcore.ai/projects/poptorch-user-guide/en/latest/reference.html
- [features]   "Features", docs.graphcore.ai/projects/poptorch-user-guide/en/latest/overview.html
- [batching]   "Efficient data batching",
  docs.graphcore.ai/projects/poptorch-user-guide/en/latest/batching.html
- [from torch] "From PyTorch to PopTorch",
               docs.graphcore.ai/projects/poptorch-user-guide/en/latest/pytorch_to_poptorch.html
- [source]     github.com/graphcore/poptorch, branch sdk-release-3.4, the file that is named

A name that the documentation doesn't have, or that isn't simulated, is an AttributeError. What is
simulated is stricter than the original in one way: the original also copies weights to the host
when a parameter of the module is touched ([features], "poptorch.PoplarExecutor"); here the host's
copy stays old until a documented method brings it.

The simulation's own knob is the environment variable POPTORCH_SIMULATED_IPUS: how many there are
(16 if it isn't set, 0 for none; `broken`: the import fails as it does without an enabled SDK).
"""

import os

if os.environ.get("POPTORCH_SIMULATED_IPUS") == "broken":
    # [source] python/__init__.py: what is raised where the Poplar SDK isn't enabled.
    raise ImportError(
        "Unable to import PopTorch, this can be caused by attempting to import PopTorch without an "
        "active Poplar SDK."
    )

from importlib import import_module

_PLACES = {
    "device": ("Error", "ipuHardwareIsAvailable"),
    "enums": ("OutputMode",),
    "executor": ("PoplarExecutor", "inferenceModel", "trainingModel"),
    "loader": ("DataLoader",),
    "options": ("Options",),
    "tracing": ("identity_loss",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name):
    """Imported when it is asked for: to count devices needs no torch, and tests do that in many
    processes.
    """
    if name == "optim":
        return import_module("poptorch.optim")
    if name not in _MODULES:
        raise AttributeError(f"poptorch.{name} isn't documented, or the simulator doesn't have it")
    return getattr(import_module(f"poptorch.{_MODULES[name]}"), name)
