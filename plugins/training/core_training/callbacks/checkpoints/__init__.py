"""Callbacks that save checkpoints, and their helpers: names, files, the best k."""
