"""The one door to hivemind: nothing of it is imported before a process is about to train with it."""

from __future__ import annotations

import warnings
from typing import Any

from core import PluginLoadError

_RECIPE = "pip install 'hivemind>=1.1.12,<1.2'"


def load() -> Any:
    """Hivemind.

    Raises:
        PluginLoadError: it isn't installed, or can't be imported.
    """
    import torch.multiprocessing

    sharing = torch.multiprocessing.get_sharing_strategy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses torch.jit, for what isn't used here
            import hivemind
    except Exception as error:  # whatever a compiled library raises when it doesn't fit
        raise PluginLoadError(
            f"strategy='hivemind' needs hivemind, which can't be imported: {type(error).__name__}: {error}. "
            f"Install it with: {_RECIPE} (Linux and macOS; its wheel brings the program p2pd, and needs no compiler)"
        ) from error
    finally:  # hivemind sets another one for the whole process when it is imported
        torch.multiprocessing.set_sharing_strategy(sharing)
    return hivemind
