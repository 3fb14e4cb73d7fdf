"""Tests that need Ray: `tox run -e ray`. Elsewhere they aren't collected; those of
`test_without_ray.py` always are.
"""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("ray")
    distribution("core-ray")
except PackageNotFoundError:
    collect_ignore_glob = ["test_[!w]*.py"]
