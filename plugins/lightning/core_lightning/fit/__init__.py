"""Callbacks that the user doesn't see: all that Lightning's Trainer does besides in its stages."""
