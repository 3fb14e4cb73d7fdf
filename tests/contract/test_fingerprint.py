"""Ranks that run different plugins are told so, and not left to wait for each other."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from torch.distributed import HashStore

from core.contract.errors import FingerprintError
from core.strategies.fingerprint import describe_difference, exchange

MINE = (("accelerator", "cpu", "core", "0.1.0"), ("strategy", "acme", "core-acme", "1.0"))
OTHER = (("accelerator", "cpu", "core", "0.1.0"), ("strategy", "acme", "core-acme", "2.0"))


def on_all_ranks(fingerprints, store=None):
    store = store or HashStore()

    def run(rank):
        try:
            exchange(store, rank, len(fingerprints), fingerprints[rank])
        except FingerprintError as error:
            return str(error)

    with ThreadPoolExecutor(len(fingerprints)) as pool:
        return list(pool.map(run, range(len(fingerprints))))


def test_equal_ones_pass():
    assert on_all_ranks([MINE] * 3) == [None] * 3


@pytest.mark.parametrize("num_ranks", [2, 40])
def test_ranks_that_are_alike_ask_a_few_questions_each_however_many_they_are(num_ranks):
    store = Mock(wraps=HashStore())
    assert on_all_ranks([MINE] * num_ranks, store) == [None] * num_ranks
    assert len(store.method_calls) == 4 * num_ranks + 2


def test_a_table_says_who_differs():
    all_ranks = zip("aabbc", [MINE, MINE, OTHER, MINE, ()], strict=True)
    assert describe_difference([*all_ranks]).splitlines()[1:] == [
        "  kind         ranks   nodes  alias  provider",
        "  accelerator  0-1, 3  a, b   cpu    core 0.1.0",
        "  accelerator  2       b      cpu    core 0.1.0",
        "  accelerator  4       c      none   -",
        "  strategy     0-1, 3  a, b   acme   core-acme 1.0",
        "  strategy     2       b      acme   core-acme 2.0",
        "  strategy     4       c      none   -",
    ]


def test_only_what_differs_is_shown():
    assert "accelerator" not in describe_difference([("a", MINE), ("a", OTHER)])


def test_all_ranks_learn_of_a_difference():
    outcomes = on_all_ranks([MINE, OTHER, MINE])
    assert len(set(outcomes)) == 1
    assert "core-acme 2.0" in outcomes[0]
