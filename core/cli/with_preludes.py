"""The program that `core run --with NAME` starts in each process: the preludes, then the user's script as `__main__`.

python -m core.cli.with_preludes lightning train.py --lr 0.1
python -m core.cli.with_preludes first,second -m package.train
"""

from __future__ import annotations

import os
import runpy
import sys

from core.registry import load_prelude


def main(names: str, *rest: str) -> None:
    """Call the preludes and run the script or module, which sees its own arguments only.

    Args:
        names: of the preludes, with commas between them.
        rest: `-m` and a module's name, or a script's path; then its arguments.
    """
    for name in names.split(","):
        load_prelude(name)()
    is_module = rest[0] == "-m"
    script, *arguments = rest[1:] if is_module else rest
    sys.argv = [script, *arguments]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
