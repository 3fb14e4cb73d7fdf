"""Experts distributed over the ranks of an expert group."""
