"""A program for Lightning: the import hook that `install` adds, and the report of `--explain`."""
