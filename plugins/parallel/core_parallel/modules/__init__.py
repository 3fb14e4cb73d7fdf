"""Modules under any dimension: their forwards, plans, own state, graphs, and parts that are
elsewhere.
"""
