"""Trains cases of the kit as somebody else's process, and saves losses and weights of each.

python equality_program.py OUT --strategy ddp --devices 2
"""

import argparse

import torch

from core_testing import Backend, Rank
from core_testing.cases import CASES
from core_testing.ranks import TestRanks
from core_testing.training import train

NAMES = ("shuffled", "accumulated_and_clipped")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--strategy", default="single_device")
    parser.add_argument("--devices", type=int, default=1)
    given = parser.parse_args()
    found_by_core = {"plugins": []}
    rank = Rank(Backend(lambda: given.strategy, "cpu", given.devices, given.devices, found_by_core), TestRanks())
    runs = {case.name: train(rank, case) for case in CASES if case.name in NAMES}
    if rank.trainer().is_global_zero:
        torch.save({name: (run.losses, run.weights) for name, run in runs.items()}, given.out)


if __name__ == "__main__":
    main()
