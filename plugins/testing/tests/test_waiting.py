import time

import pytest

from core_testing.waiting import slowness, wait_until


def test_a_wait_returns_what_it_waited_for():
    values = iter(["", None, "there"])
    assert wait_until(lambda: next(values), "value") == "there"


def test_a_wait_that_ends_says_what_it_saw_last():
    with pytest.raises(AssertionError, match=r"No port after \d+ s; the last that was seen: \[\]"):
        wait_until(list, "port", timeout_s=0)


def test_a_loaded_machine_gets_more_time(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    idle = slowness()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0))
    assert slowness() == idle * 3
    start = time.monotonic()
    monkeypatch.setattr("time.monotonic", iter([start, start + 61, start + 62]).__next__)
    values = iter([None, "there"])
    assert wait_until(lambda: next(values), "value", timeout_s=60) == "there"
