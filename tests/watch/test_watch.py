"""The watch over real ranks: what it says of a hang, how the run ends, and what it leaves alone."""

import os
import re
import sys
from pathlib import Path

import psutil
import pytest

from core_testing import programs

HANGING = Path(__file__).with_name("hanging.py")


@pytest.mark.parametrize(
    ("how", "launcher", "says", "line"),
    [
        ("asleep@first", "script", "Rank 1 is asleep", "time.sleep(600)"),
        pytest.param(
            *(
                "asleep@teardown",
                "fork",
                "No rank waits for another: rank 1 is asleep",
                "time.sleep(600)",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "asleep", "store", "Rank 1 is asleep", "time.sleep(600)", marks=pytest.mark.slow
        ),
        pytest.param(
            "stopped-0",
            "spawn",
            "Rank 0 is stopped by a signal",
            "SIGSTOP)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "extra",
            "torchrun",
            "rank 1 waits for the others",
            "fabric.barrier()",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(
                "alone@epoch_end",
                "fork",
                "In a checkpoint, to which the others don't come: rank 1 waits",
            ),
            "trainer.save_checkpoint(",
            marks=pytest.mark.slow,
        ),
        pytest.param("regex", "script", "Rank 1 computes", "re.match(", marks=pytest.mark.slow),
    ],
)
def test_a_hang_is_told_and_ends_the_run_with_a_verdict(tmp_path, how, launcher, says, line):
    strategy = "store" if launcher == "store" else "ddp"
    launcher = "script" if launcher == "store" else launcher
    torchrun = [*programs.TORCHRUN, "--nproc-per-node=2", "--standalone"]
    command = torchrun if launcher == "torchrun" else [sys.executable]
    end_s = 3 if how == "regex" else 6  # that is at work, and has ten times as long
    arguments = map(str, [HANGING, how, strategy, launcher, 1.5, tmp_path, end_s])
    done = programs.run(
        [*command, *arguments], timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert not [
        each
        for each in psutil.process_iter(["cmdline"])
        if str(tmp_path) in (each.info["cmdline"] or [])
    ]
    assert done.returncode == 1, done.stderr
    named = (
        rf"The ranks have made no progress for \d+ s\. (?:[^;:]*: )?{says} .*at "
        r".*hanging.py:(\d+) in hang"
    )
    # An extra call ends the run at once, and a store that is stopped with rank 0 is given up after
    # five seconds.
    ends_at_once = how in ("extra", "alone@epoch_end", "stopped-0")
    lines = HANGING.read_text().splitlines()
    for begins in ["core.HangError: "] if ends_at_once else ["core: ", "core.HangError: "]:
        place = re.search(begins + named, done.stderr)
        assert place, done.stderr
        # the endless loop is on one of its two lines
        assert line in "".join(lines[int(place[1]) - 2 : int(place[1])])
    assert "Exception raised from" not in done.stderr  # as torch says of a store that is gone
    (report,) = (path.read_text() for path in tmp_path.glob("core-hang-*.txt"))
    assert all(f"rank {rank} on " in report for rank in (0, 1))
    assert "hanging.py" in report.partition("rank 1 on ")[2]
