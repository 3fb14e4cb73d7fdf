"""core-wandb against the conformance kit."""

import pytest

from core_wandb.conformance import TestWandb

__all__ = ["TestWandb"]

# Imported once, and not in the process of each test. A run imports the second when it begins.
pytest.importorskip("wandb", reason="pip install wandb")
pytest.importorskip("wandb.sdk.launch")


@pytest.fixture(autouse=True)
def without_requirements(monkeypatch):
    """A run reads the metadata of all installed packages otherwise."""
    monkeypatch.setenv("WANDB_X_SAVE_REQUIREMENTS", "false")
