"""Callbacks that change or average weights."""
