"""Obstacles to compiling DeepSpeed's parts in C++, with real locks of torch and real compilers."""

import os
import shlex
import shutil
import sys
import sysconfig
import threading
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from core import ConfigurationError
from core_deepspeed import library, ops
from core_deepspeed.ops import locks
from core_deepspeed.ops.preflight import ninja_found_first
from core_deepspeed.ops.telling import telling
from core_testing import programs
from core_testing.waiting import slowness, wait_until

HOLDER = """
import sys, time
from torch.utils.file_baton import FileBaton

baton = FileBaton(sys.argv[1])
assert baton.try_acquire()
print("acquired", flush=True)
time.sleep(float(sys.argv[2]))
baton.release()
"""
# As torch.utils._filelock.FileLock, which torch has compiled under since 2.14.
KERNEL_HOLDER = """
import sys, time
from filelock import FileLock

with FileLock(sys.argv[1]):
    print("acquired", flush=True)
    time.sleep(float(sys.argv[2]))
"""
file_is_the_lock = hasattr(cpp_extension, "FileBaton")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of `cpu_adam`, as torch lays it out."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    own = tmp_path / "cpu_adam"
    own.mkdir()
    return own


@pytest.fixture
def compiled(folder):
    """Of `cpu_adam`, where somebody has compiled it."""
    (folder / "cpu_adam.so").touch()
    return folder


@contextmanager
def builder(lock, program, seconds=600):
    """A process that keeps the lock as one that compiles does."""
    command = [sys.executable, "-c", program, lock, seconds]
    process = programs.start(command, forks_others=False)
    try:
        wait_until(lambda: process.output() == "acquired\n", "lock of another process")
        yield process
    finally:
        process.kill()
        process.wait()


def refusal(names=("cpu_adam",), **options):
    with pytest.raises(ConfigurationError) as caught:
        ops.check(names, **options)
    return str(caught.value)


@pytest.fixture(params=["file", "kernel"])
def holder(request, monkeypatch):
    """How torch keeps a lock until 2.14, whose file is the lock, and since, where the file
    stays.
    """
    if request.param == "file":
        if not file_is_the_lock:
            pytest.skip("torch has locked the file itself since 2.14")
        return HOLDER
    monkeypatch.delattr(cpp_extension, "FileBaton", raising=False)
    return KERNEL_HOLDER


def test_a_lock_is_its_builders_until_that_is_killed(compiled, holder):
    lock = compiled / "lock"
    with builder(lock, holder) as process:
        assert locks.holder_of(lock) == process.pid
        assert locks.is_kept(lock)
        assert not locks.is_stale(lock)
    assert lock.exists()
    assert locks.is_stale(lock) == locks.is_kept(lock) == (holder == HOLDER)


def test_a_builder_that_lives_is_waited_for(compiled, holder, caplog):
    with builder(compiled / "lock", holder, seconds=2) as process:
        ops.check(["cpu_adam"], limit=timedelta(minutes=1) * slowness())
    (record,) = caplog.records
    assert (
        f"Waiting for process {process.pid}, which compiles cpu_adam for DeepSpeed, for at"
        in record.getMessage()
    )


def test_the_wait_has_an_end(compiled, holder):
    with builder(compiled / "lock", holder) as process:
        message = refusal(limit=timedelta(seconds=1))
    assert message.startswith(
        f"Process {process.pid} has been compiling cpu_adam for DeepSpeed for more than"
    )
    cure = "; when it is gone, delete that file." if holder == HOLDER else "."
    assert message.endswith(f"it keeps {compiled / 'lock'}. Look at what it does{cure}")


@pytest.mark.skipif(not file_is_the_lock, reason="torch has locked the file itself since 2.14")
def test_a_builder_that_dies_meanwhile(compiled):
    with builder(compiled / "lock", HOLDER) as process:
        threading.Timer(0.5, process.kill).start()
        message = refusal(limit=timedelta(minutes=2) * slowness())
    assert message == (
        f"{compiled / 'lock'} says that a process compiles cpu_adam for DeepSpeed, and none on "
        "this machine does: it was killed. Every run would wait for it, for ever. Delete the "
        f"file: rm {compiled / 'lock'}"
    )


@pytest.mark.skipif(file_is_the_lock, reason="this torch takes the file for the lock")
def test_the_lock_of_this_torch_is_the_kernels(compiled):
    from torch.utils._filelock import FileLock

    assert cpp_extension.FileLock is FileLock
    with cpp_extension.FileLock(compiled / "lock"):
        assert locks.is_kept(compiled / "lock")


def only(tmp_path, monkeypatch, **programs):
    """A PATH with these programs and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


class TestTools:
    def test_no_ninja(self, compiled, tmp_path, monkeypatch):
        only(tmp_path, monkeypatch)
        assert refusal() == (
            "DeepSpeed loads cpu_adam with ninja, and there is no ninja here: pip install ninja."
        )

    def test_the_ninja_beside_python_comes_first(self, compiled, tmp_path, monkeypatch):
        beside = only(tmp_path, monkeypatch, ninja="echo 2")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        shutil.copy(beside / "ninja", elsewhere)
        monkeypatch.setenv("PATH", str(elsewhere))
        ops.check(["cpu_adam"])
        with ninja_found_first():
            assert Path(shutil.which("ninja")).parent == beside
            assert os.environ["PATH"] == f"{beside}{os.pathsep}{elsewhere}"
        assert os.environ["PATH"] == str(elsewhere)

    def test_deepspeed_finds_that_ninja_and_path_stays(self, monkeypatch):
        op_builder = library.load().ops.op_builder
        monkeypatch.setattr(op_builder.builder.OpBuilder, "_loaded_ops", {})
        scripts = sysconfig.get_path("scripts")
        before = os.pathsep.join(
            each for each in os.environ["PATH"].split(os.pathsep) if each != scripts
        )
        monkeypatch.setenv("PATH", before)
        found = []
        monkeypatch.setattr(
            cpp_extension, "load", lambda **options: found.append(shutil.which("ninja"))
        )
        op_builder.CPUAdamBuilder().load()
        assert found == [shutil.which("ninja", path=os.pathsep.join((scripts, before)))]
        assert os.environ["PATH"] == before

    def test_no_compiler(self, folder, tmp_path, monkeypatch):
        only(tmp_path, monkeypatch, ninja="")
        monkeypatch.delenv("CXX", raising=False)
        assert refusal() == (
            "DeepSpeed compiles cpu_adam on this machine, and there is no C++ compiler: 'c++' is "
            "not in PATH. Install one (apt-get install g++), or name it in the environment "
            "variable CXX."
        )
        monkeypatch.setenv("CXX", "clang-of-mine -O2")
        assert "'clang-of-mine -O2' is not in PATH" in refusal()

    def test_what_is_compiled_needs_no_compiler(self, compiled, tmp_path, monkeypatch):
        only(tmp_path, monkeypatch, ninja="")
        ops.check(["cpu_adam"])

    def test_no_libaio(self, folder, tmp_path, monkeypatch):
        compiler = shutil.which("c++")
        only(tmp_path, monkeypatch, ninja="")
        wrapper = tmp_path / "without_headers"
        wrapper.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin exec "{compiler}" -nostdinc "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("CXX", shlex.quote(str(wrapper)))
        assert (
            "Offloading to NVMe needs the library libaio and its header, which aren't here"
            in refusal(["async_io"])
        )

    def test_who_waits_is_told_why(self, folder, caplog, monkeypatch):
        config = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
        ops.prepare(config)
        monkeypatch.setenv("LOCAL_RANK", "1")
        ops.prepare(config)
        (record,) = caplog.records
        assert record.getMessage() == (
            "DeepSpeed compiles cpu_adam now, which takes minutes. `python -m core_deepspeed.ops "
            "build cpu_adam` does that ahead."
        )


def test_compiling_tells_how_far_it_is(folder, capsys):
    with telling(["cpu_adam"], interval_s=0.01):
        await_text(capsys, "begins")
        (folder / "build.ninja").write_text(
            "build one.o: compile one.cpp\nbuild two.o: compile two.cpp\nbuild all: x\n"
        )
        (folder / "a.o").touch()
        await_text(capsys, "1 of 2 files are compiled")
        config = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
        assert ops.left_to_compile(config) == ["cpu_adam"]
        (folder / "cpu_adam.so").touch()
    assert ops.left_to_compile(config) == []


def test_a_terminal_has_one_line_of_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with telling(["cpu_adam"]):
        await_text(capsys, "\r\x1b[2Kcpu_adam             begins, 1 s")
    assert capsys.readouterr().err == "\r\x1b[2K"


def await_text(capsys, text):
    wait_until(lambda: text in capsys.readouterr().err, text)


def test_what_was_compiled_when_deepspeed_was_installed_needs_nothing(tmp_path, monkeypatch):
    package = tmp_path / "deepspeed"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "git_version_info_installed.py").write_text(
        "installed_ops={'cpu_adam': True, 'async_io': False}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    only(tmp_path, monkeypatch)
    ops.check(["cpu_adam"])
    assert "there is no ninja here" in refusal(["cpu_adam", "async_io"])


@pytest.mark.parametrize(
    ("offload", "names"),
    [
        ({}, []),
        ({"offload_optimizer": {"device": "none"}}, []),
        ({"offload_param": {"device": "cpu"}}, []),
        ({"offload_optimizer": {"device": "cpu"}}, ["cpu_adam"]),
        ({"offload_optimizer": {"device": "nvme"}}, ["cpu_adam", "pin_memory", "async_io"]),
        ({"offload_param": {"device": "nvme"}}, ["pin_memory", "async_io"]),
    ],
)
def test_what_a_run_needs(offload, names):
    assert ops.needed({"zero_optimization": offload}) == names


class TestCommand:
    def run(self, *arguments):
        return programs.run([sys.executable, "-m", "core_deepspeed.ops", *arguments])

    def test_it_says_what_is_there(self, compiled):
        done = self.run("check", "cpu_adam", "async_io")
        assert done.stdout.splitlines() == [
            f"{'cpu_adam':20} is compiled: {compiled}",
            f"{'async_io':20} is not compiled yet",
        ]
        assert done.returncode == 0

    def test_who_compiles_does_not_stand_in_the_way(self, compiled):
        program = HOLDER if file_is_the_lock else KERNEL_HOLDER
        with builder(compiled / "lock", program) as process:
            done = self.run("check", "cpu_adam")
        assert done.stdout == f"{'cpu_adam':20} process {process.pid} compiles it\n"
        assert done.returncode == 0

    def test_and_what_stands_in_the_way(self, compiled):
        (compiled / "lock").touch()
        done = self.run("check", "cpu_adam")
        assert (f"Delete the file: rm {compiled / 'lock'}" in done.stdout) == file_is_the_lock
        assert done.returncode == int(file_is_the_lock)

    @pytest.mark.skipif(not file_is_the_lock, reason="torch has locked the file itself since 2.14")
    def test_it_does_not_wait_for_ever(self, compiled):
        (compiled / "lock").touch()
        done = self.run("build", "cpu_adam")
        assert f"Delete the file: rm {compiled / 'lock'}" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 1
