"""core-wandb against the conformance kit."""

import importlib

import pytest

from core_wandb.conformance import TestWandb

__all__ = ["TestWandb"]


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Once, and not in the process of each test. A run imports it when it begins."""
    importlib.import_module("wandb.sdk.launch")


@pytest.fixture(autouse=True)
def without_requirements(monkeypatch):
    """A run reads the metadata of all installed packages otherwise."""
    monkeypatch.setenv("WANDB_X_SAVE_REQUIREMENTS", "false")
