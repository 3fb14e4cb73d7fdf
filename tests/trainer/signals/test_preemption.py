"""SIGTERM between any two lines of a run ends it, with a code that tells so; what was saved goes on to the same end."""

import collections

import pytest

from trainer.signals.preempting import try_many


@pytest.mark.slow  # the quick tests of signals stand in test_interruption_signals.py
def test_no_signal_is_lost():
    """A thousand of them: python tests/trainer/signals/preempting.py 1000."""
    _, outcomes = try_many(14, seed=7)
    total = sum(outcomes.values(), collections.Counter())
    assert set(total) <= {"ended", "by the kernel", "none came"}, outcomes
    assert total["ended"] >= 8
