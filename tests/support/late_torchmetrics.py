"""torchmetrics, imported by the first test that uses it: it takes 4 s, which every process that
collects would spend.

Import it in the parent of ranks that are forked, or each of them does.
"""

import importlib


def __getattr__(name):
    # pytest asks every object of a module whether it is a test
    if name.startswith(("_", "pytest")):
        raise AttributeError(name)
    return getattr(importlib.import_module("torchmetrics"), name)
