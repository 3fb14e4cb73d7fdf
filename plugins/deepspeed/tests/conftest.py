"""These tests need the library: `tox run -e deepspeed`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("deepspeed"):
    collect_ignore_glob = ["test_*.py"]
