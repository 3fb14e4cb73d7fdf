"""Environments of equal settings share one folder, and so one copy of torch.

tox empties a folder that an environment of another name has used, or one that needed more. `runner = shared` in
`tox.ini` leaves the name out of that comparison, and what is there besides; the interpreter, the constraints and what
is missing stay in it. tox itself no longer offers this since release 4 (https://github.com/tox-dev/tox/pull/2789).
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tox.plugin import impl
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner
from tox.tox_env.register import ToxEnvRegister


class SharedInfo(Info):
    """The record that tox keeps of a folder, without the name of the environment that used it last."""

    @contextmanager
    def compare(
        self, value: Any, section: str, sub_section: str | None = None
    ) -> Generator[tuple[bool, Any | None], None, None]:
        """Compare, with one name for all environments, and as equal if all that is wanted is there."""
        if section == "ToxEnv":
            value = {**value, "name": "shared"}
        there = (self._content.get(section) or {}).get(sub_section)
        if there and "req" in value and value == {**there, "req": value["req"]} and {*value["req"]} <= {*there["req"]}:
            value = there
        with super().compare(value, section, sub_section) as outcome:
            yield outcome


class SharedRunner(VirtualEnvRunner):
    """A virtual environment that several tox environments use, one after the other."""

    @staticmethod
    def id() -> str:
        """The name in `tox.ini`."""
        return "shared"

    @property
    def cache(self) -> SharedInfo:
        """The record that tox keeps of the folder."""
        return SharedInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    """Offer the runner to tox."""
    register.add_run_env(SharedRunner)
