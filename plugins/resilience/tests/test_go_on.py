"""`core go-on`: who meets again after a loss, and how the run ends. The scripts train nothing."""

import os
import re
import shutil
import signal
import socket
import textwrap

import pytest
from click.testing import CliRunner

from core.cluster import reserve_port
from core.contract import LaunchError
from core_resilience.in_place import kept_states
from core_resilience.in_place.command import go_on
from core_resilience.in_place.token import own_token
from core_testing import programs
from core_testing.waiting import slowness, wait_until

BEGINNING = """
import os, pathlib, signal, sys, time

rank, size, number = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
node = os.environ["GROUP_RANK"]


def log(text):
    with open("log", "a") as file:
        file.write(f"{text}\\n")


log(f"{number}: {rank} of {size} on {node} pid {os.getpid()}")


def rest():
    while True:  # a signal that comes just before a long sleep would be heard after it
        time.sleep(0.05)


def await_all():
    while pathlib.Path("log").read_text().count(f"{number}: ") < size:
        time.sleep(0.01)


await_all()
"""


def start(folder, script, *options, **variables):
    (folder / "train.py").write_text(BEGINNING + textwrap.dedent(script))
    command = [*programs.CORE, "go-on", *options, "train.py"]
    own = {"OMP_NUM_THREADS": "1", "CORE_GO_ON_TOKEN": "secret"}
    return programs.start(command, cwd=folder, env=os.environ | own | variables)


def run(folder, script, *options):
    program = start(folder, script, *options)
    output, errors = program.communicate(timeout=60 * slowness())
    return program.returncode, output, errors


def rounds(folder):
    """Of each round, who is there: rank and size, node and process."""
    found = {}
    for line in re.finditer(
        r"(\d+): (\d+) of (\d+) on (\d+) pid (\d+)", (folder / "log").read_text()
    ):
        number, rank, size, node, pid = map(int, line.groups())
        found.setdefault(number, {})[rank] = size, node, pid
    return [found[number] for number in sorted(found)]


def await_rounds(folder, num_rounds, size):
    def come():
        found = rounds(folder) if (folder / "log").exists() else []
        return found if len(found) >= num_rounds and len(found[-1]) == size else None

    return wait_until(come, "the ranks")


KILL_0 = """
if number == 0 and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if number == 0:
    rest()
"""


def test_a_killed_rank_is_replaced_and_the_others_stay(tmp_path):
    code, _, errors = run(tmp_path, KILL_0, "--devices", "3")
    assert code == 0, errors
    before, after = rounds(tmp_path)
    assert (before[1], before[2]) == (after[1], after[2])
    assert before[0] != after[0]
    assert (
        "Rank 0 was killed by SIGKILL. All ranks leave their step and their group, and meet again."
        in errors
    )
    assert "3 processes run the script again, after " in errors


def test_it_goes_on_with_fewer_in_multiples(tmp_path):
    code, _, errors = run(
        tmp_path, KILL_0, "--devices", "4", "--min-devices", "2", "--multiple-of", "2"
    )
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
        rest()
    """
    code, _, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    found = rounds(tmp_path)
    assert [len(each) for each in found] == [2, 2, 2, 2]
    assert found[2][0] == found[3][0]


def test_what_a_script_waits_for_is_broken_off(tmp_path):
    """Also where it swallows all exceptions but for those that end a program."""
    script = """
    if number == 0 and rank == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while number == 0:
            try:
                time.sleep(0.05)
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
        rest()
    """
    code, output, errors = run(tmp_path, script, "--devices", "2")
    assert code == 0, errors
    assert [line for line in output.splitlines() if line.startswith("0")] == [
        "0 0 1",
        "0 1 1",
        "0 2 1",
        "0 3 1",
    ]


@pytest.mark.parametrize(
    ("name", "found"), [("package.train", "package.train"), ("package", "package.__main__")]
)
def test_a_module_of_a_package(tmp_path, name, found):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("word = 'hello'\n")
    text = (
        "import os, sys\nfrom .other import word\nprint(word, *sys.argv[1:], __spec__.name, "
        "flush=True)\n"
    )
    text += "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), 9)\n"
    (tmp_path / "package" / f"{found.partition('.')[2]}.py").write_text(text)
    program = programs.start(
        [*programs.CORE, "go-on", "--devices", "1", "-m", name, "--lr", "1"], cwd=tmp_path
    )
    output, errors = program.communicate(timeout=60 * slowness())
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
    code, _, errors = run(tmp_path, "if rank == 1:\n    1 / 0\nrest()\n", "--devices", "2")
    assert code == 1
    assert "train.py" in errors
    assert "ZeroDivisionError" in errors
    assert errors.splitlines()[-1] == "core go-on: Rank 1 exited with code 1, and the run with it."


def test_losses_are_limited(tmp_path):
    code, _, errors = run(
        tmp_path,
        "os.kill(os.getpid(), 9) if rank else rest()",
        "--devices",
        "2",
        "--max-losses",
        "2",
    )
    assert code == 1
    assert len(rounds(tmp_path)) == 3
    assert errors.splitlines()[-1] == (
        "core go-on: Rank 1 was killed by SIGKILL, and more than 2 losses end the run "
        "(--max-losses)."
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_handed_on(tmp_path, number, code):
    script = """
    try:
        log("inside")
        rest()
    except BaseException as error:
        print(type(error).__name__)
        raise
    """
    program = start(tmp_path, script, "--devices", "2", "--spares", "1")
    await_rounds(tmp_path, 1, 2)
    wait_until(lambda: (tmp_path / "log").read_text().count("inside") == 2, "two ranks inside")
    os.kill(program.pid, number)
    output, _ = program.communicate(timeout=60 * slowness())
    assert program.returncode == code
    assert output.count("KeyboardInterrupt") == (2 if number == signal.SIGINT else 0)
    assert_gone(rounds(tmp_path))


def test_ranks_end_with_the_launcher(tmp_path):
    program = start(tmp_path, "rest()", "--devices", "2")
    found = await_rounds(tmp_path, 1, 2)
    os.kill(program.pid, signal.SIGKILL)
    program.wait(60 * slowness())
    assert_gone(found)


def assert_gone(found):
    pids = {pid for each in found for _, _, pid in each.values()}
    wait_until(lambda: not any(map(is_running, pids)), "end of all ranks")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("least_nodes", [1, 2])
def test_a_lost_node_is_replaced_or_left_out(tmp_path, request, least_nodes):
    port = str(reserve_port(request))
    options = [
        "--devices",
        "2",
        "--num-nodes",
        "2",
        "--min-nodes",
        str(least_nodes),
        "--main-port",
        port,
    ]
    script = "if number == 0: rest()"
    first = start(tmp_path, script, *options)
    second = start(tmp_path, script, *options, "--node-rank", "1")
    before = await_rounds(tmp_path, 1, 4)[0]
    # the last one says nothing
    strangers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(4)]
    for stranger, said in zip(
        strangers, (b"GET / HTTP/1.1\n", b'{"of": 0}\n', b"[" * 60_000 + b"\n"), strict=False
    ):
        stranger.sendall(said)
    assert [node for _, node, _ in (before[rank] for rank in range(4))] == [0, 0, 1, 1]
    second.kill()
    ends = [first]
    if least_nodes == 2:
        wait_until(
            lambda: re.search("Node 1 was lost(.|\n)*wait for more", first.errors()),
            "the loss of node 1",
        )
        ends.append(start(tmp_path, script, *options, "--node-rank", "1"))
    for each in ends:
        _, errors = each.communicate(timeout=60 * slowness())
        assert each.returncode == 0, errors
    waits = first.errors().count(
        "core go-on: 1 of 2 nodes are there, and wait for more at 127.0.0.1."
    )
    assert waits >= least_nodes - 1
    after = rounds(tmp_path)[-1]
    assert len(after) == 2 * least_nodes
    assert [after[rank][2] for rank in (0, 1)] == [before[rank][2] for rank in (0, 1)]
    assert_gone([before])
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b'{"nonce": 1}\n{"proof": 2}\n', "doesn't know it"),
        (b"HTTP/1.1 400\n", "has closed the connection"),
    ],
)
def test_a_node_heeds_no_launcher_without_its_token(tmp_path, said, text):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        node = start(
            tmp_path,
            "",
            "--devices",
            "1",
            "--num-nodes",
            "2",
            "--node-rank",
            "1",
            "--main-port",
            str(port),
        )
        connection = server.accept()[0]
        connection.sendall(said)
        _, errors = node.communicate(timeout=60 * slowness())
        connection.close()
    assert node.returncode == 1
    assert (
        f"at 127.0.0.1:{port} the launcher of node 0 with this node's token, and what is there "
        f"{text}. " in errors
    )
    assert not (tmp_path / "log").exists()


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder in memory of a run's states."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORE_MEMORY_FOLDER", str(tmp_path))
    monkeypatch.setenv("CORE_GO_ON_TOKEN", "secret")
    folder = tmp_path / f"core-{os.getuid()}-go-on-1-0"
    folder.mkdir(mode=0o700)
    (folder / "state").touch()
    return folder


def test_states_of_this_user_with_the_token_go_on(kept, capsys):
    folder = kept_states.copy_to_disk("go-on-1")
    shutil.rmtree(kept)
    kept_states.copy_to_memory("go-on-1")
    assert (kept / "state").exists()
    assert capsys.readouterr() == ("", "")
    kept_states.remove_from_disk("go-on-1")
    assert not folder.parent.exists()


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder, patch: patch.setenv("CORE_GO_ON_TOKEN", "another"),
        lambda folder, patch: folder.chmod(0o777),
        lambda folder, patch: folder.parent.chmod(0o777),
        lambda folder, patch: folder.rename(folder.with_name("go-on-1")),
        lambda folder, patch: link(folder),
        lambda folder, patch: link(folder.parent),
    ],
    ids=["another token", "others write", "others write beside", "planted", "link", "link to all"],
)
def test_states_that_another_may_have_planted_are_neither_read_nor_removed(
    kept, monkeypatch, capsys, change
):
    folder = kept_states.copy_to_disk("go-on-1")
    shutil.rmtree(kept)
    change(folder, monkeypatch)
    kept_states.copy_to_memory("go-on-1")
    kept_states.remove_from_disk("go-on-1")
    assert not kept.exists()
    assert (
        "isn't read: expected a folder that this user's core go-on has made"
        in capsys.readouterr().err
    )
    assert len(list(kept.parent.rglob("state"))) == 1


def test_states_of_others_in_memory_are_not_copied(kept):
    kept.chmod(0o770)
    assert kept_states.copy_to_disk("go-on-1") is None


def test_the_token_is_made_once_for_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("CORE_GO_ON_TOKEN", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert len(own_token()) == 64
    assert own_token() == own_token()
    [file] = (tmp_path / "core").iterdir()
    file.chmod(0o640)
    with pytest.raises(
        LaunchError, match=r"isn't this user's alone; delete it\. Set CORE_GO_ON_TOKEN to a secret"
    ):
        own_token()


def test_a_port_that_is_taken(tmp_path, request):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        program = start(
            tmp_path, "", "--devices", "1", "--num-nodes", "2", "--main-port", str(port)
        )
        _, errors = program.communicate(timeout=60 * slowness())
    assert program.returncode == 1
    assert f"core go-on can't listen on port {port} of 127.0.0.1: " in errors
    assert "Pass another --main-port, and an address of this machine as --main-address." in errors


def test_another_system_is_refused(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    result = CliRunner().invoke(go_on, ["--devices", "2", __file__])
    assert result.exit_code == 2
    assert "it needs Linux 5.3 or later" in result.output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--devices", "3", "--multiple-of", "2"], "--devices 3 isn't one"),
        (["--devices", "2", "--num-nodes", "2", "--min-devices", "1"], "see --min-nodes"),
        (["--devices", "2", "no.py"], "there is no file 'no.py'"),
    ],
)
def test_mistakes_of_the_command_line(options, text):
    result = CliRunner().invoke(go_on, [*options, __file__])
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())
