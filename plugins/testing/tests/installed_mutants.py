"""Distributions that are wrong in one way, and launchers, which scripts must find by their
metadata.
"""

from dataclasses import dataclass, field

from support.fake_distributions import make_distribution

STRATEGY = '''
"""A strategy."""

from core import Strategy

{before}

class AcmeStrategy(Strategy):
    """All defaults."""
{body}

_Hidden = AcmeStrategy
'''

LAUNCHER = '''
"""A launcher."""

import os

from core.launch import MultiprocessingLauncher


class AcmeLauncher(MultiprocessingLauncher):
    """Forks."""

    def __init__(self) -> None:
        super().__init__("fork")
{body}
'''


@dataclass(frozen=True)
class Installed:
    """A distribution with one alias, its own name.

    Attributes:
        name: of it.
        fault: what is wrong.
        test: that must fail.
        kind: of plugin.
        before: code before the class.
        body: code in the class.
        entry_points: lines besides those of a right one; `{module}` is its module.
        attribute: what the alias names.
        requires: its requirements.
        at_start: whether every Python imports it.
        records: whether it lists its files.
    """

    name: str
    fault: str
    test: str
    kind: str = "strategy"
    before: str = ""
    body: str = ""
    entry_points: str = ""
    attribute: str = "AcmeStrategy"
    requires: tuple[str, ...] = ("core-training>=0.1,<0.2",)
    at_start: bool = False
    records: bool = True
    attributes: dict[str, object] = field(default_factory=dict)

    @property
    def module(self):
        return f"mutant_{self.name}"

    def install(self, path):
        """Write it below a folder."""
        group = {"strategy": "core.strategies", "launcher": "core.launchers"}[self.kind]
        points = f"[{group}]\n{self.name} = {self.module}:{self.attribute}\n{self.entry_points}"
        source = STRATEGY if self.kind == "strategy" else LAUNCHER
        modules = {self.module: source.format(before=self.before, body=self.body)}
        modules |= {"sitecustomize": f"import {self.module}"} if self.at_start else {}
        info = make_distribution(
            path,
            f"mutant-{self.name}",
            entry_points_text=points,
            requires=self.requires,
            modules=modules,
        )
        files = [f"{info.name}/METADATA", f"{info.name}/entry_points.txt", f"{info.name}/RECORD"]
        files += [f"{self.module}.py"] if self.records else []
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


_ONE_PROCESS = {"num_processes": 1}
RIGHT = Installed(
    "right",
    "nothing",
    "",
    entry_points="[core.hooks]\nright = mutant_right\n",
    attributes=_ONE_PROCESS,
)
RIGHT_LAUNCHER = Installed(
    "right_launcher", "nothing", "", kind="launcher", attribute="AcmeLauncher"
)

_SWALLOWS = """
    def launch(self, function, *args, **kwargs):
        try:
            return super().launch(function, *args, **kwargs)
        except Exception:
            return None
"""
_LEAVES_A_VARIABLE = """
    def launch(self, function, *args, **kwargs):
        os.environ["MUTANT_WORLD"] = "1"
        return super().launch(function, *args, **kwargs)
"""
_LAUNCHES_ONCE = """
    launched = False

    def launch(self, function, *args, **kwargs):
        assert not self.launched
        self.launched = True
        return super().launch(function, *args, **kwargs)
"""
_CALLS_SOMEHOW = """
    calls_in_place = None
"""
_LOSES_THE_RESULT = """
    def launch(self, function, *args, **kwargs):
        super().launch(function, *args, **kwargs)
"""
_HIDES_THE_SIGNAL = """
    def launch(self, function, *args, **kwargs):
        try:
            return super().launch(function, *args, **kwargs)
        except Exception as error:
            if "SIGKILL" in str(error):
                raise SystemExit("a process has ended")
            raise
"""

INSTALLED = (
    Installed(
        "broken",
        "Can't be made.",
        "test_is_offered_and_made",
        before="def broken(**options):\n    raise OSError('no licence')",
        attribute="broken",
    ),
    Installed(
        "imported_by_python",
        "Is imported whenever Python starts, and so by listing it.",
        "test_listing_imports_neither_torch_nor_the_plugin",
        at_start=True,
    ),
    Installed(
        "without_launcher",
        "Asks for a launcher that no package offers, which a script finds out.",
        "test_a_script_trains",
        body="    launcher_name = 'nowhere_to_be_found'",
        attributes=_ONE_PROCESS,
    ),
    Installed(
        "misspelt_group",
        "Names a group that core doesn't read.",
        "test_metadata_names_known_groups",
        entry_points="[core.strategy]\nother = {module}:AcmeStrategy\n",
    ),
    Installed(
        "hidden_target",
        "Offers a private class.",
        "test_metadata_names_public_attributes",
        attribute="_Hidden",
    ),
    Installed(
        "unbounded",
        "Accepts any later core.",
        "test_requirement_on_core_is_bounded",
        requires=("core-training>=0.1",),
    ),
    Installed(
        "unbounded_below",
        "Accepts any core.",
        "test_requirement_on_core_is_bounded",
        requires=("core-training<0.2",),
    ),
    Installed(
        "undeclared", "Doesn't require core.", "test_requirement_on_core_is_bounded", requires=()
    ),
    Installed(
        "without_module",
        "Names a module that it doesn't hold.",
        "test_distribution_contains_its_module",
        records=False,
    ),
    Installed(
        "heavy_import",
        "Imports its vendor's library with its module.",
        "test_import_leaves_heavy_libraries_alone",
        before="import acme_vendor_library",
        attributes={"heavy_modules": ("acme_vendor_library",)},
    ),
    Installed(
        "variable_at_import",
        "Sets a variable when it is imported.",
        "test_import_changes_nothing",
        before="import os; os.environ['MUTANT_IMPORTED'] = '1'",
    ),
    Installed(
        "thread_at_import",
        "Starts a thread when it is imported.",
        "test_import_changes_nothing",
        before="import threading; threading.Thread(target=threading.Event().wait, "
        "daemon=True).start()",
    ),
    *(
        Installed(name, fault, test, kind="launcher", attribute="AcmeLauncher", body=body)
        for name, fault, test, body in (
            ("swallows", "Goes on when a rank fails.", "test_an_exception_comes_first", _SWALLOWS),
            (
                "hides_the_signal",
                "Doesn't say who was killed.",
                "test_a_killed_rank_is_named",
                _HIDES_THE_SIGNAL,
            ),
            (
                "leaves_a_variable",
                "Sets a variable.",
                "test_leaves_no_process_and_no_variable",
                _LEAVES_A_VARIABLE,
            ),
            ("launches_once", "Launches once.", "test_launches_again", _LAUNCHES_ONCE),
            (
                "calls_somehow",
                "Doesn't know how it calls.",
                "test_says_how_it_calls",
                _CALLS_SOMEHOW,
            ),
            ("loses_the_result", "Returns nothing.", "test_runs_on_every_rank", _LOSES_THE_RESULT),
        )
    ),
)


def right(kind):
    """The one of a kind that all its tests must pass."""
    return {"strategy": RIGHT, "launcher": RIGHT_LAUNCHER}[kind]


def write_suites(path):
    """A file of suites for all of them."""
    lines = ["from core_testing import LauncherConformance, StrategyConformance\n"]
    for each in (*INSTALLED, RIGHT, RIGHT_LAUNCHER):
        base = "StrategyConformance" if each.kind == "strategy" else "LauncherConformance"
        attributes = "".join(f"    {name} = {value!r}\n" for name, value in each.attributes.items())
        lines.append(f"class Test_{each.name}({base}):\n    alias = {each.name!r}\n{attributes}")
    path.write_text("\n\n".join(lines))


def install_all(path):
    """All of them below one folder, and the library that one of them imports."""
    path.mkdir(exist_ok=True)
    (path / "acme_vendor_library.py").write_text("")
    for each in (*INSTALLED, RIGHT, RIGHT_LAUNCHER):
        each.install(path)
