"""The exception that ends an interrupted run, in another process."""

import pickle
import signal

import pytest

from core_training.signals.interruption import interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_reaches_another_process_as_it_was(number):
    error = interruption(number, is_agreed=True)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code) == (
        type(error),
        f"interrupted by {number.name}",
        128 + number,
    )
    assert copy.is_agreed
