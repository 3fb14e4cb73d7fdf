"""The errors and warnings that a process shows: shorter tracebacks, a warning once a run, an error
once a node.

`install_for(owner)` sets the hooks of this process for as long as the owner lives: a Fabric, a
Trainer, an error that a registry raises. An import sets none, but of `core` in a rank of torchrun,
and neither does an error that is made. `CORE_DISPLAY=plain` in the environment leaves all of them
alone.
"""

from core.display.hooks import VARIABLE, install_for

__all__ = ["VARIABLE", "install_for"]
