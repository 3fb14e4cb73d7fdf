"""The values that a run logs, from `self.log` to the loggers."""
