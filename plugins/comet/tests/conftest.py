"""These tests need the library: `pip install comet-ml`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("comet_ml"):
    collect_ignore_glob = ["test_*.py"]
