"""The conformance suites of core-hivemind. Imported by `core check` and the tests only: it needs
pytest.
"""

from core import Capability
from core_testing import StrategyConformance, StrategySmoke

_FOLDER = "multiprocessing has a folder of this process, and removes it when the process ends"
_EPOCHS = "a peer's epochs are its own, so that a scheduler that goes by them is refused"


class TestHivemind(StrategyConformance):
    """A peer that is alone, and makes a step of each batch: as one device does."""

    alias = "hivemind"
    options = {"target_batch_size": 1, "run_id": "kit"}
    num_processes = 1
    other_num_processes = None
    timeout_s = 240
    heavy_modules = ("hivemind",)
    expected_capabilities = (
        Capability.ELASTIC
        | Capability.MANUAL_OPTIMIZATION
        | Capability.OWNS_CLIPPING
        | Capability.OWNS_GRADIENTS
        | Capability.OWNS_SCHEDULER
        | Capability.CLIP_BY_VALUE
        | Capability.INFERENCE_MODE
        | Capability.BIT_EXACT_RESUME
    )
    known_failures = {
        "test_training_equals_one_device[scheduler_by_epoch]": _EPOCHS,
        "test_teardown_leaves_nothing[temporary_files]": _FOLDER,
    }

    def test_optimizer_state_has_parameter_names(self) -> None:
        """As the kit's."""
        self._set_batch_size()
        super().test_optimizer_state_has_parameter_names()

    def test_ranks_compute_the_same_model(self) -> None:
        """As the kit's."""
        self._set_batch_size()
        super().test_ranks_compute_the_same_model()

    def _set_batch_size(self) -> None:
        """For a loop without a loader, which would tell it."""
        vars(self)["options"] = {**self.options, "batch_size": 2}


class TestCollaborative(StrategySmoke):
    """The same by its other name."""

    alias = "collaborative"
    options = TestHivemind.options
    num_processes = 1
    timeout_s = 240
    heavy_modules = TestHivemind.heavy_modules
