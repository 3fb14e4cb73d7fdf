"""Packages that aren't installed as far as a test can see."""

import importlib.util


def hide(monkeypatch, package):
    """Let `find_spec` find nothing of this name."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else find(name, *rest),
    )
