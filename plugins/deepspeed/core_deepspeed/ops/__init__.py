"""The parts of DeepSpeed in C++, which are compiled on the machine where they are first used.

`python -m core_deepspeed.ops build` compiles them ahead, `python -m core_deepspeed.ops check` says what is there.
"""

from core_deepspeed.ops.preflight import NAMES, check, needed, prepare

__all__ = ["NAMES", "check", "needed", "prepare"]
