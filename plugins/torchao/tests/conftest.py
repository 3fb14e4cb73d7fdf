"""These tests need the library: `pip install torchao`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("torchao"):
    collect_ignore_glob = ["test_*.py"]
