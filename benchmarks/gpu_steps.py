"""The steps of `gpu.py`, a process each: `python benchmarks/gpu_steps.py saves` with the variable
GPU_DAY.

A step returns its figures, by name with the unit in it, and raises where something is wrong. All
run on a CPU as well, smaller, with the same code.
"""

import json
import sys
import traceback
from functools import partial
from pathlib import Path

from gpu_day.device import detected, memory
from gpu_day.hanging import hang, hang_legacy
from gpu_day.language import gpt2
from gpu_day.numbers import compiled, precisions
from gpu_day.saving import asynchronous_saves, resume, saves
from gpu_day.setting import DAY, Skip

STEPS = {
    "detected": detected,
    "hang": partial(hang, {}),
    "hang-legacy": hang_legacy,
    "precisions": precisions,
    "saves": saves,
    "asynchronous-saves": asynchronous_saves,
    "resume": resume,
    "compile": compiled,
    "memory": memory,
    "gpt2": gpt2,
}


def main():
    """Run the step that the command line names, and write what came of it."""
    verdict, why, figures = "passed", "", {}
    try:
        figures = STEPS[sys.argv[1]]()
    except Skip as error:
        verdict, why = "skipped", str(error)
    except Exception as error:
        verdict, why = (
            "failed",
            f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}",
        )
    Path(DAY["result"]).write_text(
        json.dumps({"verdict": verdict, "why": why, "figures": figures}, default=str)
    )


if __name__ == "__main__":
    main()
