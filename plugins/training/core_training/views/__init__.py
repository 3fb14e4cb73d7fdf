"""The Trainer as its modules, callbacks and users see it."""
