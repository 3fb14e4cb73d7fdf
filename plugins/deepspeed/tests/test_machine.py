"""A part that is missing on a machine is one error, before any process starts."""

import os
import sys

import pytest
from torch.utils import cpp_extension

from core import ConfigurationError, Fabric
from core_deepspeed import library
from core_testing import programs

RESOLVED = (
    "from core import Fabric; Fabric(strategy='deepspeed_stage_1_offload', "
    "accelerator='cpu', devices=1)"
)


def run(program, **variables):
    """The last line that a program says, in a process where DeepSpeed isn't imported yet."""
    done = programs.run([sys.executable, "-c", program], env=os.environ | variables)
    return (done.stderr if done.returncode else done.stdout).splitlines()[-1]


def test_deepspeed_is_told_the_device():
    assert (
        run(
            f"{RESOLVED}\nfrom deepspeed.accelerator import get_accelerator as a; "
            "print(a().device_name())"
        )
        == "cpu"
    )


def test_another_device_than_it_was_told(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    with pytest.raises(
        ConfigurationError, match="is to compute on 'cpu' here, and DS_ACCELERATOR=cuda tells it"
    ):
        library.load("cpu")


@pytest.mark.skipif(
    not hasattr(cpp_extension, "FileBaton"), reason="torch has locked the file itself since 2.14"
)
def test_a_lock_that_nobody_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    with pytest.raises(ConfigurationError, match=r"Delete the file: rm .*/cpu_adam/lock"):
        Fabric(strategy="deepspeed_stage_1_offload", accelerator="cpu", devices=2)


def test_a_library_that_is_broken(tmp_path):
    (tmp_path / "deepspeed.py").write_text(
        "raise OSError('libcuda.so.1: cannot open shared object file')\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    assert run(RESOLVED, PYTHONPATH=path).startswith(
        "core.PluginLoadError: strategy='deepspeed' needs the package deepspeed, which can't be "
        "imported: OSError: libcuda.so.1: cannot open shared object file. Install it with: pip "
        "install 'deepspeed>=0.19,<0.20'"
    )


def test_it_is_found_when_a_run_is_resolved_and_not_before():
    program = (
        "import sys, core_deepspeed; core_deepspeed.DeepSpeedStrategy(2); print('deepspeed' "
        "in sys.modules)"
    )
    assert run(program) == "False"
