"""The loggers with Lightning's arguments."""
