"""Ranks that run different plugins are told so, and not left to wait for each other."""

import threading

import pytest

from core.contract.errors import FingerprintError
from core.strategies.fingerprint import compare, exchange

MINE = (("accelerator", "cpu", "core", "0.1.0"), ("strategy", "acme", "core-acme", "1.0"))
OTHER = (("accelerator", "cpu", "core", "0.1.0"), ("strategy", "acme", "core-acme", "2.0"))


class Store:
    """A store like torch's: `get` waits for a key."""

    def __init__(self):
        self.values, self.counters, self.num_calls = {}, {}, 0
        self.written = threading.Condition()

    def set(self, key, value):
        with self.written:
            assert key not in self.values
            self.num_calls += 1
            self.values[key] = value.encode()
            self.written.notify_all()

    def add(self, key, amount):
        with self.written:
            self.num_calls += 1
            self.counters[key] = self.counters.get(key, 0) + amount
            return self.counters[key]

    def get(self, key):
        with self.written:
            assert self.written.wait_for(lambda: key in self.values, timeout=10)
            self.num_calls += 1
            return self.values[key]


def on_all_ranks(fingerprints, store=None):
    store, outcomes = store or Store(), [None] * len(fingerprints)

    def run(rank):
        try:
            exchange(store, rank, len(fingerprints), fingerprints[rank])
        except FingerprintError as error:
            outcomes[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(fingerprints))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_equal_ones_pass():
    compare([MINE] * 4)
    assert on_all_ranks([MINE] * 3) == [None] * 3


def test_ranks_that_are_alike_ask_a_few_questions_each_however_many_they_are():
    for num_ranks in (2, 40):
        store = Store()
        on_all_ranks([MINE] * num_ranks, store)
        assert store.num_calls == 4 * num_ranks + 3


def test_a_table_says_who_differs():
    with pytest.raises(FingerprintError) as raised:
        compare([MINE, MINE, OTHER, MINE, ()], hosts=["a", "a", "b", "b", "c"])
    table = str(raised.value).splitlines()[1:]
    assert table == [
        "  kind         ranks   nodes  alias  provider",
        "  accelerator  0-1, 3  a, b   cpu    core 0.1.0",
        "  accelerator  2       b      cpu    core 0.1.0",
        "  accelerator  4       c      none   -",
        "  strategy     0-1, 3  a, b   acme   core-acme 1.0",
        "  strategy     2       b      acme   core-acme 2.0",
        "  strategy     4       c      none   -",
    ]


def test_only_what_differs_is_shown():
    with pytest.raises(FingerprintError) as raised:
        compare([MINE, OTHER])
    assert "accelerator" not in str(raised.value)
    assert "?" in str(raised.value)


def test_all_ranks_learn_of_a_difference():
    outcomes = on_all_ranks([MINE, OTHER, MINE])
    assert len(set(outcomes)) == 1
    assert "core-acme 2.0" in outcomes[0]
