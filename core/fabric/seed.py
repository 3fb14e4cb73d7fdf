"""One number for all random generators."""

from __future__ import annotations

import operator
import random
import sys
from typing import Any

import torch

from core.contract import ConfigurationError


def seed_everything(seed: int = 0, workers: bool = True) -> int:
    """Seed Python's, NumPy's (where it is used) and torch's generators, those of devices included.

    The shuffling of data follows from it, and on several ranks the loaders' workers too, each in its own way.

    Args:
        seed: from 0 to 2**32 - 1, which is what NumPy takes. The same on all ranks.
        workers: known from other trainers. Loaders' workers follow from the seed in any case.

    Returns:
        The seed.

    Raises:
        ConfigurationError: another number.
    """
    seed = checked_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


def checked_seed(seed: Any) -> int:
    """The seed as an int, if it is one that all generators take.

    Raises:
        ConfigurationError: it isn't.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**32:
        raise ConfigurationError(f"seed_everything({seed!r}): expected an integer from 0 to 2**32 - 1.")
    return number
