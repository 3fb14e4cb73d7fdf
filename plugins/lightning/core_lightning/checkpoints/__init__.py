"""Checkpoints in Lightning's form: written, read, and what of their objects is kept and trusted."""
