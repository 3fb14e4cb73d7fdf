"""A run of one process beside one of two, in a `ddp` script as a user starts it."""

import os
import sys
import textwrap

import pytest

from core_testing import programs


@pytest.mark.parametrize("what", ["alone-after", "alone-before"])
def test_a_run_of_one_process_is_refused_in_every_other_rank(what, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            from core import Callback
            from support.tiny import Tiny, loader, make_trainer

            class Beginning(Callback):
                def on_train_start(self, trainer, module):
                    print("a run of one process begins", flush=True)

            if __name__ == "__main__":
                quiet = {"max_epochs": 1, "enable_checkpointing": False}
                if sys.argv[1] == "alone-before":
                    make_trainer(None).validate(Tiny(), loader())
                make_trainer(None, strategy="ddp", devices=2, **quiet).fit(Tiny(), loader())
                make_trainer(None, Beginning(), **quiet).fit(Tiny(), loader())
        """)
    )
    command = [sys.executable, str(program), what]
    done = programs.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100)
    assert done.returncode == 1
    message = (
        "This program runs in 2 processes, this is rank 1, and devices=1 asks for a run of "
        "one process: each rank "
    )
    assert f"LaunchError: {message}" in done.stderr
    assert "    if trainer.is_global_zero:" in done.stderr
    assert done.stdout.count("a run of one process begins") <= 1
