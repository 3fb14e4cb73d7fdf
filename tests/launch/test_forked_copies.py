"""What a forked copy of a rank, and the rank itself, have of the rank's signals afterwards."""

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.parametrize("blocked", ["[]", "[signal.SIGTERM]"])
def test_a_fork_leaves_the_mask_of_signals_as_it_was(blocked):
    program = textwrap.dedent("""
        import os, signal
        from core.launch.forked_copies import ForkedCopies

        def is_blocked():
            return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])

        signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
        ForkedCopies(lambda: None)
        for _ in range(2):
            copy = os.fork()
            if not copy:
                os._exit(is_blocked())
            print(is_blocked(), bool(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])))
    """)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program.format(blocked=blocked)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(blocked != "[]")] * 4
