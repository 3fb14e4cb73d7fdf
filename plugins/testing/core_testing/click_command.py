"""The suite for commands of the program `core`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.testing import CliRunner

from core_testing.conformance import Conformance

if TYPE_CHECKING:
    from click.testing import Result


class CommandConformance(Conformance[click.Command]):
    """All that a command must prove. Subclass it and set `alias`."""

    kind = "command"

    def invoke(self, *arguments: str) -> Result:
        """Call the command in this process."""
        return CliRunner().invoke(self.make(), arguments, prog_name=f"core {self.alias}")

    def test_help_describes_it(self) -> None:
        """`core NAME --help` prints its usage and a sentence, and ends with 0."""
        result = self.invoke("--help")
        assert result.exit_code == 0, result.output
        assert result.output.startswith(f"Usage: core {self.alias}")
        assert self.make().get_short_help_str(), "has no docstring, which is its help"

    def test_an_unknown_option_is_refused(self) -> None:
        """With exit code 2, and without a traceback."""
        result = self.invoke("--no-such-option")
        assert result.exit_code == 2, result.output
        assert "No such option" in result.output
