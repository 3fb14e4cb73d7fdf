"""The callbacks with Lightning's arguments, moments and numbers."""
