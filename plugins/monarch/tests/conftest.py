"""Tests that need Monarch: `tox run -e monarch`. Elsewhere those of `test_without_monarch.py` alone
are collected.
"""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("torchmonarch")
    distribution("core-monarch")
except PackageNotFoundError:
    collect_ignore_glob = ["test_[!w]*.py"]
