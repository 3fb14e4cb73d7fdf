"""What torch has recorded of collectives, as the thread of the watch reads it beside the user's
program.
"""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_reading_it_imports_nothing(tmp_path):
    """The main thread may be importing the same, as at the first call of a compiled module."""
    program = """
import sys
import torch
import torch.distributed as dist
from core.watch.flight_recorder import newest

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(10))
print(newest())  # none is under way
print([name for name in ("torch._inductor", "torch._dynamo") if name in sys.modules])
print('_inductor' in torch._lazy_modules)
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "Collective(name='', is_usual=False, num_calls=0)",
        "[]",
        "True",
    ], done.stderr
