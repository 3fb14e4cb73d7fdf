"""What the watch asks its store for, in a thread that it doesn't wait for longer than it likes."""

import threading

from torch.distributed import HashStore

from core.watch.store_access import StoreAccess


def test_none_is_run_after_one_has_failed_or_while_one_is_at_work():
    done, release = [], threading.Event()
    calls = StoreAccess(HashStore(), lambda: False)
    assert calls.ask(lambda: done.append("first"), 60)
    assert not calls.ask(release.wait, 0.01)
    assert not calls.ask(lambda: done.append("beside another"), 60)
    release.set()
    calls.close(60)
    failing = StoreAccess(HashStore(), lambda: False)
    assert not failing.ask(lambda: 1 / 0, 60)
    assert not failing.ask(lambda: done.append("after a failure"), 60)
    failing.close(60)
    assert done == ["first"]
