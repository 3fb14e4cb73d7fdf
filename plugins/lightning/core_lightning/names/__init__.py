"""The table of Lightning's names, which the import hook offers."""
