"""Communication between devices."""
