"""The module and the data module, with Lightning's names and arguments."""
