"""Functions and types of Lightning's `utilities` that programs use."""
