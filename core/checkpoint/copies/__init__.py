"""Tensors as bytes, and copies of them: in memory, and from devices."""
