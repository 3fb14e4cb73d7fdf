"""A switch that says that this program's checkpoints were written by people whom its user knows."""

from __future__ import annotations

TRUSTS: list[bool] = []
"""Not empty where `install(trusted=True)` has said so."""
