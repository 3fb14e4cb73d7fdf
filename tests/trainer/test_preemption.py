"""SIGTERM between any two lines of a run ends it, with a code that tells so; what was saved goes on to the same end."""

import collections

from preempting import try_many


def test_no_signal_is_lost():
    """A thousand of them: python tests/preempting.py 1000."""
    _, outcomes = try_many(14, seed=7)
    total = sum(outcomes.values(), collections.Counter())
    assert set(total) <= {"ended", "by the kernel", "none came"}, outcomes
    assert total["ended"] >= 8
