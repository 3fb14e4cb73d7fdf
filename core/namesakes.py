"""Other distributions that bring a package `core`: pip lets the files of two mix, and Python
imports one of them.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions

from core._version import DISTRIBUTION

_BRINGS_CORE = re.compile(r"^core(/__init__)?\.py,", re.MULTILINE)


def namesakes() -> list[str]:
    """Name and version of each one that is installed, by its list of files."""
    found = [
        each for each in distributions() if _BRINGS_CORE.search(each.read_text("RECORD") or "")
    ]
    found += distributions(name="core")
    return sorted({f"{each.name} {each.version}" for each in found if each.name != DISTRIBUTION})


def overwritten() -> ImportError:
    """The error of an import that finds our modules below a `core/__init__.py` that isn't ours."""
    others = " and ".join(namesakes()) or "a distribution that is gone"
    file = __file__.replace("namesakes", "__init__")
    advice = (
        f"Uninstall that, and install {DISTRIBUTION} again, with `pip install --force-reinstall`."
    )
    return ImportError(
        f"{file} is not {DISTRIBUTION}'s: {others} has overwritten or removed it. {advice}"
    )
