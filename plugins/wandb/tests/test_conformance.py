"""core-wandb against the conformance kit."""

import pytest

from core_wandb.conformance import TestWandb

pytest.importorskip("wandb", reason="pip install wandb")  # imported once, and not in the process of each test

__all__ = ["TestWandb"]
