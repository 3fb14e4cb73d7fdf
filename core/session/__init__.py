"""The core's side of a strategy: what was set up with it, and whole states saved and loaded."""

from core.session.module_handle import ModuleHandle
from core.session.module_tree import canonical_name, from_canonical, to_canonical
from core.session.replaced import ReplacedParameters
from core.session.session import Session
from core.session.state_objects import UserData

__all__ = [
    "ModuleHandle",
    "ReplacedParameters",
    "Session",
    "UserData",
    "canonical_name",
    "from_canonical",
    "to_canonical",
]
