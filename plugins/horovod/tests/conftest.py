"""Most of these tests need Horovod, which `tox run -e horovod` compiles. Elsewhere those aren't
collected.
"""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("core-horovod")
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    try:
        distribution("horovod")
    except PackageNotFoundError:
        collect_ignore = ["test_conformance.py", "test_exchange.py", "test_strategy.py"]
