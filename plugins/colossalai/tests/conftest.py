"""These tests need Colossal-AI, which `tox run -e colossalai` installs. Elsewhere they aren't
collected.
"""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("colossalai")
    distribution("core-colossalai")
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
