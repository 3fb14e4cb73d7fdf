"""core-trackio against the conformance kit."""

from core_trackio.conformance import TestTrackio

__all__ = ["TestTrackio"]
