"""The Trainer with Lightning's arguments, attributes and loops."""
