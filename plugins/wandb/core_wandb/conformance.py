"""The conformance suites of core-wandb. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import LoggerConformance


class TestWandb(LoggerConformance):
    """Weights & Biases, offline."""

    alias = "wandb"
    heavy_modules = ("wandb",)
    requires = "wandb"
    options = {"offline": True}
    # its threads live as long as their process, and a process with threads can't be forked
    own_process = True
