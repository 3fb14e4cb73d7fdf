"""core-aim against the conformance kit."""

from core_aim.conformance import TestAim

__all__ = ["TestAim"]
