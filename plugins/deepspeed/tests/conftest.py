"""These tests need the library: `tox run -e deepspeed`. Elsewhere they aren't collected."""

from importlib.util import find_spec

if not find_spec("deepspeed"):
    collect_ignore_glob = ["test_*.py"]
else:
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks
    from slurm_cluster import slurm

    __all__ = ["slurm"]
