"""`set_within` serves a `no_backward_sync` that flips an attribute."""

from types import SimpleNamespace

import pytest

from core.strategies import set_within


def test_the_value_holds_within_and_goes_back_after_an_exception():
    owner = SimpleNamespace(syncs=True)

    def fail():
        with set_within(owner, "syncs", False):
            assert owner.syncs is False
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert owner.syncs is True
