"""These tests need the library: `tox run -e hivemind`. Elsewhere they aren't collected."""

from importlib.metadata import PackageNotFoundError, distribution

try:  # not by its module: the folder above has the same name, and may be taken for it
    distribution("hivemind")
    distribution("core-hivemind")
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_finish() -> None:
    """Undo what importing hivemind does to torch: pytest imports it as it looks for the parents of
    this folder.

    Ranks would have it from this process, and their memory would be shared by a manager, a child
    that outlives a run.
    """
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_descriptor")
