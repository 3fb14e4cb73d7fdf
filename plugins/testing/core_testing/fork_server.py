"""A program that imports modules, and then runs programs in forks of itself. Started by
`core_testing.programs`.

python fork_server.py NUMBER LIFE torch,core:*

NUMBER is that of a socket, and LIFE that of a pipe, which ends with the client; `:*` stands for all
modules of a package, which are imported too. A request
is one byte and files: a description of the program in JSON, a pipe that gets the process's id, and
its exit code when it has ended, and the program's own files, whose numbers the description has.

The server never runs a program itself, so that it has no threads. Nothing but the standard library
is imported here, for programs that look at what has been imported.

A program ends as multiprocessing's forks do: its threads have ended, its exit handlers have run,
what it wrote is out. To take down all that was imported as well would copy its memory, for a
quarter of a second: the server's own finalizers, such as those of torch's operators, don't run.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import pkgutil
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

_MAX_FILES = 64
_FOR_PROGRAMS = (signal.SIGINT, signal.SIGTERM)
"""Signals that a server leaves to its programs: it ends with its client."""


def import_all(names: str) -> None:
    """Import modules, and freeze what has come of it: forks have less to look through."""
    for name in filter(None, names.split(",")):
        package = name.removesuffix(":*")
        if package == name:
            importlib.import_module(name)
        elif found := importlib.util.find_spec(package):  # core-training, say, may not be there
            for each in pkgutil.walk_packages(
                found.submodule_search_locations or (), f"{package}."
            ):
                if not each.name.endswith(".__main__"):  # which `python -m` imports
                    with contextlib.suppress(ImportError):  # of a library that isn't there
                        importlib.import_module(each.name)
    # Frozen objects are passed over by later collections, which would otherwise write to pages
    # shared with the forks.
    gc.collect()
    gc.freeze()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]  # no public list
        finalizer.atexit = False


def next_request(connection: socket.socket, is_spare: bool = False) -> list[int]:
    """Serve, and return a request's files in the fork that is to run it. The server itself ends
    with its client.
    """
    running: dict[int, int] = {}  # pipe by process
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    # The end of a child interrupts `select` through this pipe. Python writes to it only where a
    # signal has a handler, even one that does nothing.
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _FOR_PROGRAMS:
        signal.signal(number, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([connection.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, select.PIPE_BUF)
            _report_ends(running)
        if connection.fileno() not in ready:
            continue
        message, files, _, _ = socket.recv_fds(connection, 1, _MAX_FILES)
        if not message:
            os._exit(0)
        pid = spare.fork_for_adoption() if is_spare else os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            # The socket must not be closed a second time: its number is another file's by then.
            for each in (connection.detach(), woken, wake, *running.values()):
                os.close(each)
            return files
        if not is_spare:
            running[pid] = os.dup(files[1])
        for each in files:
            os.close(each)


def _report_ends(running: dict[int, int]) -> None:
    for pid in [*running]:
        # Each by its number: several may have ended, for one signal.
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            reported = running.pop(pid)
            _report(reported, os.waitstatus_to_exitcode(status))
            os.close(reported)


def _report(reported: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # its client is gone
        os.write(reported, number.to_bytes(8, "little", signed=True))


def become(described: int, reported: int, *files: int) -> tuple[Any, dict[str, Any]]:
    """Turn this fork into the process of a program, as a new interpreter would. Returns its code
    and its namespace.
    """
    with os.fdopen(described) as file:
        request: dict[str, Any] = json.load(file)
    if request["new_session"]:
        os.setsid()
    _report(reported, os.getpid())
    os.close(reported)
    line = None
    if request["has_spare"]:
        line, its_end = socket.socketpair()
        # before the fork, so that nobody sees the spare under another name
        spare.name_process(spare.NAME)
        if os.fork() == 0:
            for each in (*files, line.detach()):
                os.close(each)
            next_files = next_request(its_end, is_spare=True)
            spare.name_process("python")
            return become(*next_files)
        spare.name_process("python")
        its_end.close()
        line = socket.socket(fileno=_above(line.detach(), request["numbers"]))
    _end_with_client(request["numbers"])
    _place(files, request["numbers"])
    _set_signals(request["ignored"], request["blocked"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # that of its own variables
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if line is not None:
        spare.Spare(line).serve()
    return _program(request["args"])


def _above(file: int, numbers: Sequence[int]) -> int:
    """Give a file a number that none of these is."""
    above = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1)
    os.close(file)
    return above


def _end_with_client(numbers: Sequence[int]) -> None:
    """Make the kernel kill this process when the client is gone, whoever is its parent by then.

    A client that is killed ends no program, and a program in a session of its own hears of nothing.
    """
    if not spare.CAN_ADOPT:
        return
    # opened anew, as the signal and its receiver belong to the open file
    life = _above(os.open(f"/proc/self/fd/{sys.argv[2]}", os.O_RDONLY | os.O_NONBLOCK), numbers)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was gone before
        os._exit(0)


def _place(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give files the numbers that the program knows them by."""
    moved = [_above(each, numbers) for each in files]
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)


def _set_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    """Answer signals as a new interpreter does, which ignores and blocks what the process that
    starts it does.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for each in (signal.SIGCHLD, *_FOR_PROGRAMS):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _program(command: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The code and the namespace of what stands behind `python` on a command line."""
    sys.orig_argv = [sys.executable, *command]
    options, command = spare.split(command)
    _set_options(options)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    added = [
        path
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and path not in sys.path
    ]
    sys.path[:0] = added if "-P" in options else [_folder_of(command[0]), *added]
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        return compile(command[1], "<string>", "exec"), vars(main)
    if command[0] == "-m":
        sys.argv = [*command[1:]]
        source = (
            f"import runpy; runpy.run_module({command[1]!r}, run_name='__main__', alter_sys=True)"
        )
        return compile(source, "<module>", "exec"), vars(main)
    sys.argv, main.__file__ = [*command], command[0]
    with open(command[0], "rb") as file:
        return compile(file.read(), command[0], "exec"), vars(main)


def _set_options(options: Sequence[str]) -> None:
    """Do what options of the interpreter ask for: `-B`, `-u` and `-W`, with an action in the same
    or the next one.
    """
    sys.dont_write_bytecode |= "-B" in options
    if "-u" in options:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # there is one
    for action in (each.removeprefix("-W") for each in options):
        if action and not action.startswith("-"):
            warnings.simplefilter(action)  # type: ignore[arg-type]  # one of them
            sys.warnoptions.append(action)


def status_of(error: BaseException) -> int:
    """Report an uncaught exception, and return the exit code, as the interpreter does.

    Negative is a signal, by which a process ends that Ctrl-C has interrupted.
    """
    if not isinstance(error, SystemExit):
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as other:  # which such a hook may raise
            return status_of(other)
        return -signal.SIGINT if type(error) is KeyboardInterrupt else 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201  # as `sys.exit("message")` does
    return 1


def end(status: int) -> None:
    """End this process as the interpreter does, but for what was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _folder_of(program: str) -> str:
    """The first folder in which Python looks for modules."""
    return {"-c": "", "-m": os.getcwd()}.get(program, os.path.dirname(os.path.realpath(program)))


# The module beside this one, without the package that both are in.
_found: Any = importlib.util.spec_from_file_location(
    "spare", os.path.join(os.path.dirname(__file__), "spare.py")
)
spare = importlib.util.module_from_spec(_found)
_found.loader.exec_module(spare)

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # this folder's modules aren't meant to be imported
    import_all(sys.argv[3])
    code, namespace = become(*next_request(socket.socket(fileno=int(sys.argv[1]))))
    status = 0
    try:
        exec(code, namespace)
    except BaseException as error:
        status = status_of(error)
    end(status)
