"""These tests need the library: `tox run -e hivemind`. Elsewhere they aren't collected."""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("hivemind")
    distribution("core-hivemind")
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
