"""Callbacks that log measurements."""
