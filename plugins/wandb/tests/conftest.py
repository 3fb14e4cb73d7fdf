"""These tests need the library: `pip install wandb`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("wandb"):
    collect_ignore_glob = ["test_*.py"]
