"""Time limits of processes that belong together and wait for each other as they end."""

GRACE_S = 4.0
"""Seconds that a rank may run its `finally` blocks after another has failed, before it is ended."""

ECHO_S = 1.0
"""Seconds within which a signal that comes again is the same one."""

HEAR_S = 0.5
"""Seconds after which a rank that was asked to end, and goes on, is taken to wait in native
code.
"""

LOOK_S = 1.0
"""Seconds that a main thread waits at a time: a signal that comes just before a wait doesn't
interrupt it.
"""
