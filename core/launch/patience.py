"""How long processes that belong together wait for each other as they end."""

GRACE_S = 4.0
"""How long a rank may run its `finally` blocks after another has failed, before it is ended."""

ECHO_S = 1.0
"""How soon a signal must come again to be the same one."""
