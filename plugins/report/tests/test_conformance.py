"""core-report against the conformance kit."""

from core_report.conformance import TestReport

__all__ = ["TestReport"]
