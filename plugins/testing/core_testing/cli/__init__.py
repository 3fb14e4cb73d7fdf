"""The commands `core check` and `core new-plugin`. They import neither torch nor pytest
themselves.
"""
