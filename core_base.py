"""The command `core`, outside the package of that name: it also runs where another package `core`
hides this one.
"""

from importlib.metadata import packages_distributions
from pathlib import Path

import core


def main() -> None:
    """Run the command; or end with the reason why the package that is imported as `core` isn't
    core-base's.
    """
    if "STRATEGY_REGISTRY" not in getattr(core, "__all__", ()):
        raise SystemExit(_reason())
    from core.cli import main as command

    command()


def _reason() -> str:
    if str(Path(__file__).with_name("core")) in getattr(core, "__path__", ()):
        from core.namesakes import overwritten

        return str(overwritten())
    others = sorted({*packages_distributions().get("core", ())} - {"core-base"})
    cure = (
        "Rename it, take its folder off sys.path, or uninstall "
        f"{' or '.join(others) or 'what brought it'}."
    )
    return f"{core.__file__} hides core-base's package `core`. {cure}"
