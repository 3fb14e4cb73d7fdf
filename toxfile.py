"""Environments of equal settings share one folder, and so one copy of torch: `runner = shared` in
`tox.ini`.

tox empties a folder that an environment of another name has used, or one that needed more. This
leaves the name out of that comparison, and what is there besides
(https://github.com/tox-dev/tox/pull/2789 took it out of tox itself).
"""

from contextlib import contextmanager

from tox.plugin import impl
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner


class SharedInfo(Info):
    """The record that tox keeps of a folder, without the name of the environment that used it
    last.
    """

    @contextmanager
    def compare(self, value, section, sub_section=None):
        """Compare, with one name for all environments, and as equal if all that is wanted is
        there.
        """
        if section == "ToxEnv":
            value = {**value, "name": "shared"}
        there = (self._content.get(section) or {}).get(sub_section)
        if (
            there
            and "req" in value
            and value == {**there, "req": value["req"]}
            and {*value["req"]} <= {*there["req"]}
        ):
            value = there
        with super().compare(value, section, sub_section) as outcome:
            yield outcome


class SharedRunner(VirtualEnvRunner):
    """A virtual environment that several tox environments use, one after the other."""

    id = staticmethod(lambda: "shared")
    cache = property(lambda self: SharedInfo(self.env_dir))


@impl
def tox_register_tox_env(register):
    """Offer the runner to tox."""
    register.add_run_env(SharedRunner)
