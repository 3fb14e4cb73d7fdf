"""Callbacks that search for a batch size and a learning rate before training."""
