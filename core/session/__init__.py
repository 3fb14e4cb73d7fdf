"""The core's side of a strategy: what was set up with it, and whole states saved and loaded."""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core.session.changed_modules import ReplacedParameters
from core.session.module_handle import ModuleHandle
from core.session.module_tree import canonical_name, from_canonical, to_canonical
from core.session.session import Session
from core.session.state_objects import UserData

if TYPE_CHECKING:
    from core.session.changed_names import describe_changes
    from core.session.divergence import RankComparison, running_statistics
    from core.session.half_loaded import refuse_half_loaded
    from core.session.same_class import check_schedulers, describe_scheduler
    from core.session.whole_state import (
        load_checkpoint,
        read_checkpoint,
        restore_state,
        save_checkpoint,
    )

__all__ = [
    "ModuleHandle",
    "RankComparison",
    "ReplacedParameters",
    "Session",
    "UserData",
    "canonical_name",
    "check_schedulers",
    "describe_changes",
    "describe_scheduler",
    "from_canonical",
    "load_checkpoint",
    "read_checkpoint",
    "refuse_half_loaded",
    "restore_state",
    "running_statistics",
    "save_checkpoint",
    "to_canonical",
]

# Only those who save, load or compare need them.
__getattr__, __dir__ = lazy_exports(__name__)
