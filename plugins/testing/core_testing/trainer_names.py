"""The names of core-training that the suites use. Where it isn't installed, they are stand-ins, and
the tests that need a Trainer are left out.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

__all__ = ["HAS_TRAINER", "Callback", "Module"]

HAS_TRAINER = find_spec("core_training") is not None

if TYPE_CHECKING or HAS_TRAINER:
    from core import Callback, Module
else:
    from torch.nn import Module

    Callback = object
