"""The conformance suite of core-report. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import CommandConformance


class TestReport(CommandConformance):
    """`core report`."""

    alias = "report"
