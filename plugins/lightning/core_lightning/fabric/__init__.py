"""Fabric, process groups of a program's own, and the throughput of its own loop."""
