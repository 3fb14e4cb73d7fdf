"""The only place that imports hivemind: nothing of it is imported before a process is about to
train with it.
"""

from __future__ import annotations

import warnings
from typing import Any

from core.registry import import_library

_RECIPE = (
    "Install it with: pip install 'hivemind>=1.1.12,<1.2' (Linux and macOS; its wheel brings the "
    "program p2pd, and needs no compiler)"
)


def load() -> Any:
    """Hivemind; see `import_library`."""
    import torch.multiprocessing

    sharing = torch.multiprocessing.get_sharing_strategy()
    try:
        with warnings.catch_warnings():
            # it uses torch.jit, for what isn't used here
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_library("hivemind", user="strategy='hivemind'", install=_RECIPE)
    finally:  # hivemind sets another one for the whole process when it is imported
        torch.multiprocessing.set_sharing_strategy(sharing)
