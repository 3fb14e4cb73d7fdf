"""A program under several strategies in turns: `core compare`.

`rank`, `recorder`, `weights` and `traffic` run in the program's processes, the rest outside of
them.
"""
