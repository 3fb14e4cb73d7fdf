"""The ends of a stage from outside: Ctrl-C, a scheduler's warning, a limit of time, a request of
one rank.
"""
