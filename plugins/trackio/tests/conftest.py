"""These tests need the library: `pip install trackio`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("trackio"):
    collect_ignore_glob = ["test_*.py"]
