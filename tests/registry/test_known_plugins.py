"""What core knows of this project's plugins is what these say of themselves."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_made_from_the_plugins():
    script = runpy.run_path(str(ROOT / "plugins" / "known_plugins.py"))
    assert script["TABLE"].read_text(encoding="utf-8") == script["text"](), "run `python plugins/known_plugins.py`"
