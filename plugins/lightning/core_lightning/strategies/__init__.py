"""Strategies, accelerators, environments and precisions, with Lightning's names."""
