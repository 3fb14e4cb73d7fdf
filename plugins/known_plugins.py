"""Writes `core/registry/known_plugins.json` from the entry points of every plugin in this folder.

    python plugins/known_plugins.py

By it an error of core can say which distribution to install. `tests/registry/test_known_plugins.py`
holds it equal.
"""

import json
import tomllib
from pathlib import Path

from core.contract.spec import normalize_alias
from core.registry.discovery import KIND_OF_GROUP

PLUGINS = Path(__file__).resolve().parent
TABLE = PLUGINS.parent / "core" / "registry" / "known_plugins.json"


def text() -> str:
    """The content that the file should have."""
    projects = [
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in PLUGINS.glob("*/pyproject.toml")
    ]
    known = {
        project["name"]: {
            KIND_OF_GROUP[group]: {
                normalize_alias(alias): target for alias, target in sorted(points.items())
            }
            for group, points in sorted(project.get("entry-points", {}).items())
            if group in KIND_OF_GROUP
        }
        for project in sorted(projects, key=lambda project: str(project["name"]))
    }
    return json.dumps(known, indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
