"""The rendezvous: how ranks find each other at a store before they are a process group, and wait
for each other.
"""
