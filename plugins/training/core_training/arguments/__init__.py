"""The arguments of `Trainer` and of its stages, and the objects that they stand for."""
