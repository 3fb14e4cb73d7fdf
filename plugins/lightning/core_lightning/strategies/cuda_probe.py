"""Program: try a small allocation on CUDA devices 0 to `count - 1`, until `wanted` of them work
(-1: try all).

    python cuda_probe.py count wanted

Prints one line of JSON: `{"usable": [0], "unusable": {"1": "why"}}`.
"""

from __future__ import annotations

import json
import sys


def probe(count: int, wanted: int) -> tuple[list[int], dict[int, str]]:
    """Indices that work, and by index why others don't."""
    import torch

    usable: list[int] = []
    unusable: dict[int, str] = {}
    for index in range(count):
        if len(usable) == wanted:
            break
        try:
            # `item()` waits for the device: what goes wrong in a kernel is reported late otherwise.
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
        except (RuntimeError, AssertionError) as error:
            unusable[index] = str(error).splitlines()[0]
        else:
            usable.append(index)
    return usable, unusable


if __name__ == "__main__":
    usable, unusable = probe(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write(json.dumps({"usable": usable, "unusable": unusable}) + "\n")
