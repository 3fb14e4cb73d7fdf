"""A program under several strategies in turns: `core compare`. `rank` runs in the program's processes, the rest outside."""
