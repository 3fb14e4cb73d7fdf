"""Layers cut over the ranks of a tensor group."""
