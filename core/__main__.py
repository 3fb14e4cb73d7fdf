"""`python -m core` is the command `core`."""

from core.cli import main

main()
