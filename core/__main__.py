"""`python -m core` is the command `core`."""

from core.cli import main

if __name__ == "__main__":
    main()
