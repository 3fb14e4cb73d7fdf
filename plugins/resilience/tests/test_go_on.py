"""`core go-on`: who meets again after a loss, and how the run ends. The scripts train nothing."""

import os
import re
import signal
import socket
import textwrap
import time

import pytest
from click.testing import CliRunner

from core.cluster import reserve_port
from core_resilience.in_place.command import go_on
from core_testing import programs

BEGINNING = """
import os, pathlib, signal, sys, time

rank, size, number = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
node = os.environ["GROUP_RANK"]


def log(text):
    with open("log", "a") as file:
        file.write(f"{text}\\n")


log(f"{number}: {rank} of {size} on {node} pid {os.getpid()}")


def await_all():
    while pathlib.Path("log").read_text().count(f"{number}: ") < size:
        time.sleep(0.01)


await_all()
"""


def start(folder, script, *options, **variables):
    (folder / "train.py").write_text(BEGINNING + textwrap.dedent(script))
    command = [*programs.CORE, "go-on", *options, "train.py"]
    return programs.start(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)


def run(folder, script, *options):
    program = start(folder, script, *options)
    output, errors = program.communicate(timeout=60)
    return program.returncode, output, errors


def rounds(folder):
    """Of each round, who is there: rank and size, node and process."""
    found = {}
    for line in re.finditer(r"(\d+): (\d+) of (\d+) on (\d+) pid (\d+)", (folder / "log").read_text()):
        number, rank, size, node, pid = map(int, line.groups())
        found.setdefault(number, {})[rank] = size, node, pid
    return [found[number] for number in sorted(found)]


def await_rounds(folder, num_rounds, size):
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if (folder / "log").exists() and len(found := rounds(folder)) >= num_rounds and len(found[-1]) == size:
            return found
        time.sleep(0.05)
    raise AssertionError("the ranks don't come")


KILL_0 = """
if number == 0 and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if number == 0:
    time.sleep(100)
"""


def test_a_killed_rank_is_replaced_and_the_others_stay(tmp_path):
    code, _, errors = run(tmp_path, KILL_0, "--devices", "3")
    assert code == 0, errors
    before, after = rounds(tmp_path)
    assert (before[1], before[2]) == (after[1], after[2])
    assert before[0] != after[0]
    assert "Rank 0 was killed by SIGKILL. All ranks leave their step and their group, and meet again." in errors
    assert "3 processes run the script again, after " in errors


def test_it_goes_on_with_fewer_in_multiples(tmp_path):
    code, _, errors = run(tmp_path, KILL_0, "--devices", "4", "--min-devices", "2", "--multiple-of", "2")
    assert code == 0, errors
    before, after = rounds(tmp_path)
    assert {pid for _, _, pid in after.values()} < {pid for _, _, pid in before.values()}
    assert [size for size, _, _ in after.values()] == [2, 2]


def test_a_spare_takes_the_place(tmp_path):
    code, _, errors = run(tmp_path, KILL_0, "--devices", "2", "--spares", "1", "--max-losses", "1")
    assert code == 0, errors
    before, after = rounds(tmp_path)
    assert before[1] == after[1]
    assert [size for size, _, _ in after.values()] == [2, 2]


def test_a_rank_lost_while_others_meet_or_have_ended(tmp_path):
    script = """
    if number == 0 and rank == 1 or number == 1 and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2 and rank == 1:  # the other has come to the script's end
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if number < 2:
        time.sleep(100)
    """
    code, _, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    found = rounds(tmp_path)
    assert [len(each) for each in found] == [2, 2, 2, 2]
    assert found[2][0] == found[3][0]


def test_a_rank_lost_before_the_others_begin(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "number = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' and number < 8 else time.sleep(100 * (number < 8))\n"
    )
    command = [*programs.CORE, "go-on", "--devices", "3", "--max-losses", "8", "train.py"]
    program = programs.start(command, cwd=tmp_path)
    _, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors  # a rank that misses the call is killed later, and is one loss more


def test_what_a_script_waits_for_is_broken_off(tmp_path):
    """Also where it swallows all exceptions but for those that end a program."""
    script = """
    if number == 0 and rank == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while number == 0:
            try:
                time.sleep(100)
            except Exception:
                pass
    finally:
        log(f"{number}: {rank} of {size} on {node} pid {os.getpid()}")
        print(f"rank {rank} leaves {number}")
    """
    code, output, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["rank 0 leaves 1", "rank 1 leaves 0", "rank 1 leaves 1"]


def test_a_process_that_stays_keeps_no_object_of_an_earlier_round(tmp_path):
    """Also where a cache knows a class of the script, whose methods know all of its names."""
    script = """
    import gc

    class Model:
        def method(self):
            return model

    sys.cache = [*getattr(sys, "cache", []), Model]
    model = Model()
    print(f"{rank} {number} {sum(type(each).__name__ == 'Model' for each in gc.get_objects())}")
    if number < 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number < 3:
        time.sleep(100)
    """
    code, output, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    assert [line for line in output.splitlines() if line.startswith("0")] == ["0 0 1", "0 1 1", "0 2 1", "0 3 1"]


def test_a_module_of_a_package(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("word = 'hello'\n")
    text = "import os\nimport sys\nfrom .other import word\nprint(word, *sys.argv[1:], __spec__.name, flush=True)\n"
    for name in ("train", "__main__"):
        lost = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), 9)\n"
        (tmp_path / "package" / f"{name}.py").write_text(text + lost)
    for name, found in (("package.train", "package.train"), ("package", "package.__main__")):
        program = programs.start([*programs.CORE, "go-on", "--devices", "1", "-m", name, "--lr", "1"], cwd=tmp_path)
        output, errors = program.communicate(timeout=60)
        assert program.returncode == 0, errors
        assert output.splitlines() == [f"hello --lr 1 {found}"] * 2


def test_an_error_that_a_loss_has_led_to_ends_no_run(tmp_path):
    script = """
    if number == 0 and rank == 0:
        raise ValueError("rank 1 has sent nothing")
    if number == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    code, _, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    assert "ValueError" not in errors


def test_an_error_of_the_script_ends_the_run(tmp_path):
    code, _, errors = run(tmp_path, "if rank == 1:\n    1 / 0\ntime.sleep(100)\n", "--devices", "2")
    assert code == 1
    assert "train.py" in errors
    assert "ZeroDivisionError" in errors
    assert errors.splitlines()[-1] == "core go-on: Rank 1 exited with code 1, and the run with it."
    code, _, errors = run(tmp_path, "sys.exit(3 if rank else 0)", "--devices", "2")
    assert code == 1
    assert errors == "core go-on: Rank 1 exited with code 3, and the run with it.\n"


def test_losses_are_limited(tmp_path):
    code, _, errors = run(
        tmp_path, "os.kill(os.getpid(), 9) if rank else time.sleep(100)", "--devices", "2", "--max-losses", "2"
    )
    assert code == 1
    assert len(rounds(tmp_path)) == 3
    assert errors.splitlines()[-1] == (
        "core go-on: Rank 1 was killed by SIGKILL, and more than 2 losses end the run (--max-losses)."
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_handed_on(tmp_path, number, code):
    script = """
    try:
        log("inside")
        time.sleep(100)
    except BaseException as error:
        print(type(error).__name__)
        raise
    """
    program = start(tmp_path, script, "--devices", "2", "--spares", "1")
    await_rounds(tmp_path, 1, 2)
    while (tmp_path / "log").read_text().count("inside") < 2:
        time.sleep(0.05)
    os.kill(program.pid, number)
    output, _ = program.communicate(timeout=60)
    assert program.returncode == code
    assert output.count("KeyboardInterrupt") == (2 if number == signal.SIGINT else 0)
    assert_gone(rounds(tmp_path))


def test_ranks_end_with_the_launcher(tmp_path):
    program = start(tmp_path, "time.sleep(100)", "--devices", "2")
    found = await_rounds(tmp_path, 1, 2)
    os.kill(program.pid, signal.SIGKILL)
    program.wait(60)
    assert_gone(found)


def assert_gone(found):
    pids = {pid for each in found for _, _, pid in each.values()}
    deadline_s = time.monotonic() + 20
    while pids and time.monotonic() < deadline_s:
        pids = {pid for pid in pids if is_running(pid)}
        time.sleep(0.05)
    assert not pids


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("least_nodes", [1, 2])
def test_a_lost_node_is_replaced_or_left_out(tmp_path, request, least_nodes):
    port = str(reserve_port(request))
    options = ["--devices", "2", "--num-nodes", "2", "--min-nodes", str(least_nodes), "--main-port", port]
    script = "if number == 0: time.sleep(100)"
    first = start(tmp_path, script, *options)
    second = start(tmp_path, script, *options, "--node-rank", "1")
    before = await_rounds(tmp_path, 1, 4)[0]
    with socket.create_connection(("127.0.0.1", int(port))) as other_program:
        other_program.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert [node for _, node, _ in (before[rank] for rank in range(4))] == [0, 0, 1, 1]
    second.kill()
    ends = [first]
    if least_nodes == 2:
        while "Node 1 was lost" not in first.errors() or "wait for more" not in first.errors():
            time.sleep(0.05)
        ends.append(start(tmp_path, script, *options, "--node-rank", "1"))
    for each in ends:
        _, errors = each.communicate(timeout=60)
        assert each.returncode == 0, errors
    waits = first.errors().count("core go-on: 1 of 2 nodes are there, and wait for more.")
    assert waits >= least_nodes - 1
    after = rounds(tmp_path)[-1]
    assert len(after) == 2 * least_nodes
    assert [after[rank][2] for rank in (0, 1)] == [before[rank][2] for rank in (0, 1)]
    assert_gone([before])


def test_a_port_that_is_taken(tmp_path, request):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        program = start(tmp_path, "", "--devices", "1", "--num-nodes", "2", "--main-port", str(port))
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 1
    assert f"core go-on can't listen on port {port}: " in errors
    assert "Pass another --main-port." in errors


def test_another_system_is_refused(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    result = CliRunner().invoke(go_on, ["--devices", "2", __file__])
    assert result.exit_code == 2
    assert "it needs Linux 5.3 or later" in result.output


def test_mistakes_of_the_command_line(tmp_path):
    for options, text in (
        (["--devices", "3", "--multiple-of", "2"], "--devices 3 isn't one"),
        (["--devices", "2", "--num-nodes", "2", "--min-devices", "1"], "see --min-nodes"),
        (["--devices", "2", "no.py"], "there is no file 'no.py'"),
    ):
        program = programs.start([*programs.CORE, "go-on", *options, "train.py"], cwd=tmp_path)
        _, errors = program.communicate(timeout=60)
        assert program.returncode == 2
        assert text in errors
