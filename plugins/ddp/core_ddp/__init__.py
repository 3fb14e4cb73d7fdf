"""torch's DistributedDataParallel for `core`: `Trainer(strategy="ddp", devices=4)`."""

from core_ddp._version import __version__
from core_ddp.presets import (
    ddp_find_unused_parameters_false,
    ddp_find_unused_parameters_true,
    ddp_fork,
    ddp_fork_find_unused_parameters_false,
    ddp_fork_find_unused_parameters_true,
    ddp_notebook,
    ddp_notebook_find_unused_parameters_false,
    ddp_notebook_find_unused_parameters_true,
    ddp_spawn,
    ddp_spawn_find_unused_parameters_false,
    ddp_spawn_find_unused_parameters_true,
)
from core_ddp.strategy import DDPStrategy

__all__ = [
    "DDPStrategy",
    "__version__",
    "ddp_find_unused_parameters_false",
    "ddp_find_unused_parameters_true",
    "ddp_fork",
    "ddp_fork_find_unused_parameters_false",
    "ddp_fork_find_unused_parameters_true",
    "ddp_notebook",
    "ddp_notebook_find_unused_parameters_false",
    "ddp_notebook_find_unused_parameters_true",
    "ddp_spawn",
    "ddp_spawn_find_unused_parameters_false",
    "ddp_spawn_find_unused_parameters_true",
]
