"""These tests need the library: `tox run -e deepspeed`. Elsewhere they aren't collected."""

from importlib.util import find_spec

import pytest

if not find_spec("deepspeed"):
    collect_ignore_glob = ["test_*.py"]
else:
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks
    from slurm_cluster import slurm

    __all__ = ["slurm"]


@pytest.fixture
def has_float16(monkeypatch):
    """DeepSpeed believes that this CPU has float16, as others have. Ranks are forked, and take this along."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    monkeypatch.setattr(CPU_Accelerator, "is_fp16_supported", lambda accelerator: True)
