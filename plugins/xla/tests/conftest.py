"""These tests need the library: `tox run -e xla`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not (find_spec("torch_xla") and find_spec("core_xla")):
    collect_ignore_glob = ["test_*.py"]
