"""core-testing's own commands against the kit."""

from core_testing import CommandConformance


class TestCheck(CommandConformance):
    alias = "check"


class TestNewPlugin(CommandConformance):
    alias = "new-plugin"
