"""LightningCLI: its parser, the values of its configs, and the config that a run saves."""
