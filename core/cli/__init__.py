"""The command `core`. Nothing that it imports to list plugins is torch, or a plugin."""

from core.cli.commands import main

__all__ = ["main"]
