"""The conformance suite of core-monarch. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import LauncherConformance


class TestMonarch(LauncherConformance):
    """Two ranks on this machine."""

    alias = "monarch"
    heavy_modules = ("monarch",)
