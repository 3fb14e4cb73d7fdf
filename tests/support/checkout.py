"""Files of the checkout that tests of plugins read. The tests in a plugin's sdist run without
them.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KITS = Path(__file__).with_name("kits.ini")
"""The settings of a kit that a test runs in a process of its own; an sdist has them too."""


def in_checkout(path: str) -> Path:
    """A file or folder of the checkout; where there is none, what asks for it is skipped."""
    if not (ROOT / path).exists():
        pytest.skip(f"needs {path} of core's checkout", allow_module_level=True)
    return ROOT / path
