"""A plugin of pytest: skips by name what macOS can't run, each with its reason, as
skipped_on_macos.toml lists them.
"""

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REASONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

# As GPUs of other makes are hidden from tests: `accelerator="auto"` means the CPU in them.
os.environ.setdefault("CORE_DISABLE_PLUGINS", "mps")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        name = f"{item.path.relative_to(ROOT)}::{item.nodeid.partition('::')[2]}"
        for reason, listed in REASONS.items():
            if any(name == each or name.startswith((f"{each}[", f"{each}::")) for each in listed):
                item.add_marker(pytest.mark.skip(reason=reason))
