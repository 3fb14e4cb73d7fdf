"""Sequences cut over the ranks of a context group."""
