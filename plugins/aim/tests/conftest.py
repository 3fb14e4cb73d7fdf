"""These tests need the library: `pip install aim`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("aim"):
    collect_ignore_glob = ["test_*.py"]
