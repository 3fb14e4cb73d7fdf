"""These tests need the library: `tox run -e deepspeed`. Elsewhere they aren't collected."""

from importlib.util import find_spec

import pytest

if not find_spec("deepspeed"):
    collect_ignore_glob = ["test_*.py"]
else:
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks
    from core_deepspeed import library, ops
    from support.slurm_cluster import slurm

    # likewise what is compiled: to find that out takes a rank two seconds
    if not ops.left_to_compile({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}):
        library.load("cpu").ops.op_builder.CPUAdamBuilder().load()

    __all__ = ["slurm"]


def _tell(monkeypatch, has_float16):
    """Let DeepSpeed believe it of this CPU. Ranks are forked, and take this along."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    monkeypatch.setattr(CPU_Accelerator, "is_fp16_supported", lambda accelerator: has_float16)


@pytest.fixture
def has_float16(monkeypatch):
    """This CPU's own float16, if it has that; else DeepSpeed believes so. Whether it is real."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    is_real = bool(CPU_Accelerator().is_fp16_supported())
    if not is_real:
        _tell(monkeypatch, True)
    return is_real


@pytest.fixture
def has_no_float16(monkeypatch):
    """DeepSpeed believes that this CPU has none, as many haven't."""
    _tell(monkeypatch, False)


@pytest.fixture
def real_float16(request, has_float16):
    """This CPU's own; a simulated one, which is slow, only for those who ask for float16 by
    name.
    """
    if not has_float16 and "Float16" not in request.config.option.keyword:
        pytest.skip("this CPU has no float16; by hand, simulated: -k Float16")
