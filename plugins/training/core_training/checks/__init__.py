"""Checks of module, strategy and arguments: what can't work is refused before any process
starts.
"""
