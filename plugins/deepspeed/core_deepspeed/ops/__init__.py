"""The parts of DeepSpeed in C++, which are compiled on the machine where they are first used.

`python -m core_deepspeed.ops build` compiles them ahead, `python -m core_deepspeed.ops check` says
what is there.
"""

from core_deepspeed.ops.preflight import NAMES, check, left_to_compile, needed, prepare
from core_deepspeed.ops.telling import telling

__all__ = ["NAMES", "check", "left_to_compile", "needed", "prepare", "telling"]
