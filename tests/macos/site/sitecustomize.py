"""Takes from Python what macOS doesn't have, in every interpreter that finds this file: tests/macos/run sets the path.

What Python's documentation calls "Availability: Linux", and what its own configure step doesn't find on macOS.
"""

# ruff: noqa: E402
import select

for _name in [name for name in vars(select) if name.startswith(("EPOLL", "epoll"))]:
    delattr(select, _name)  # before `socket` imports `selectors`, which chooses by what there is

import builtins
import fcntl
import importlib.machinery
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import time
import types

# What Python's library imports there from modules that are compiled for macOS alone.
_scproxy = types.ModuleType("_scproxy")
_scproxy._get_proxy_settings = dict
_scproxy._get_proxies = dict
sys.modules["_scproxy"] = _scproxy

_MISSING = {
    os: (
        "CLONE_ EFD_ GRND_ MFD_ O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE PIDFD_ POSIX_FADV_ P_PIDFD "
        "RTLD_DEEPBIND SCHED_BATCH SCHED_IDLE SCHED_RESET SPLICE_ TFD_ XATTR_ copy_file_range eventfd fdatasync "
        "getrandom getresgid getresuid getxattr listxattr memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate "
        "removexattr sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity "
        "sched_setparam sched_setscheduler setns setresgid setresuid setxattr splice unshare waitid"
    ),
    signal: "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: (
        "AF_ALG AF_CAN AF_NETLINK AF_PACKET AF_QIPCRTR AF_RDS AF_TIPC AF_VSOCK ALG_ CAN_ MSG_CMSG_CLOEXEC MSG_CONFIRM "
        "MSG_ERRQUEUE MSG_FASTOPEN MSG_MORE MSG_NOSIGNAL NETLINK_ PACKET_ SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE "
        "SO_DOMAIN SO_MARK SO_PASSCRED SO_PASSSEC SO_PEERCRED SO_PEERSEC SO_PRIORITY SO_PROTOCOL TCP_CORK TCP_INFO "
        "TCP_QUICKACK TCP_USER_TIMEOUT"
    ),
    resource: (
        "RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD prlimit"
    ),
    fcntl: "DN_ F_ADD_SEALS F_GETSIG F_GET_SEALS F_GETLEASE F_NOTIFY F_OFD_ F_SEAL_ F_SETLEASE F_SETPIPE_SZ F_SETSIG",
    time: "CLOCK_BOOTTIME CLOCK_TAI clock_settime pthread_getcpuclockid",
}
_taken = [
    (module, name, value)
    for module, beginnings in _MISSING.items()
    for name, value in vars(module).items()
    if name.startswith(tuple(beginnings.split()))
]
for module, name, _ in _taken:
    delattr(module, name)

del os.sysconf_names["SC_AVPHYS_PAGES"]

# sysconfig looks for the settings of this build by the platform's name.
os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = (
    f"_sysconfigdata_{sys.abiflags}_{sys.platform}_{sys.implementation._multiarch}"
)
sys.platform = "darwin"
multiprocessing.set_start_method("spawn")

_getrusage = resource.getrusage


def _getrusage_in_bytes(who):
    """The most memory in bytes, not in KiB."""
    found = _getrusage(who)
    return resource.struct_rusage([*found[:2], found.ru_maxrss * 1024, *found[3:]])


resource.getrusage = _getrusage_in_bytes

# The C library keeps semaphores in /dev/shm, and so it is there, but nobody's file system.
_stat = os.stat


def _stat_without_shm(path, *args, **options):
    if not isinstance(path, int) and os.fsdecode(path).startswith("/dev/shm"):
        raise FileNotFoundError(2, "No such file or directory", path)
    return _stat(path, *args, **options)


os.stat = _stat_without_shm


class _Psutil:
    """Lets psutil, which asks macOS itself there, ask the kernel's files where they are now."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "psutil" or (spec := importlib.machinery.PathFinder.find_spec(name, path, target)) is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            kernel = os.readlink("/dev/fd").removesuffix("/self/fd")
            opens = builtins.open
            sys.platform = "linux"
            for owner, name, value in _taken:
                setattr(owner, name, value)
            # It looks once before it can be told.
            builtins.open = lambda file, *args, **options: opens(
                re.sub("^/proc/", f"{kernel}/", file) if isinstance(file, str) else file, *args, **options
            )
            execute(module)
            builtins.open = opens
            for owner, name, _ in _taken:
                delattr(owner, name)
            sys.platform = "darwin"
            module.PROCFS_PATH = kernel

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Psutil)
