"""Checkpoints that lie in a folder: found, listed, shown, converted and deleted."""
