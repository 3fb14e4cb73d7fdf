"""Runs import-linter on core and on every plugin in this folder: its configuration can't name
packages by a pattern.

    python plugins/imports.py

In `pyproject.toml`, `"core_*"` stands for the packages of all plugins.
"""

import sys
import tempfile
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Check the contracts, and return the exit code."""
    folders = sorted(path.parent for path in ROOT.glob("plugins/*/core_*/__init__.py"))
    sys.path[:0] = [str(ROOT), *(str(folder.parent) for folder in folders)]
    packages = ", ".join(f'"{folder.name}"' for folder in folders)
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace('"core_*"', packages)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(config)
        file.flush()
        return lint_imports(config_filename=file.name, cache_dir=str(ROOT / ".import_linter_cache"))


if __name__ == "__main__":
    sys.exit(main())
