"""Programs that log with a service's library, which keeps threads, processes or databases beside
who uses it.
"""

import os
import sys

from core_testing import programs


def run_in(folder, program, preload=programs.PRELOAD, **variables):
    """Run a program, which may import `logged_net`, with more variables; the lines that it
    prints.
    """
    program = f"import sys\nsys.path.append({os.path.dirname(__file__)!r})\n{program}"
    command = [sys.executable, "-c", program]
    done = programs.run(
        command, cwd=folder, env=os.environ | variables, timeout=120, preload=preload
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
