"""Strategies that are meant to differ from one device, and don't keep what they promise all the
same.
"""

from compressing import CompressingStrategy, LocalStrategy
from table import mutant

from core_testing import Differs

KIND = "differing strategy"
SIGNS = Differs("gradients travel as signs", within=0.5, steps_outstanding=12)
NOW_AND_THEN = Differs("weights are averaged every second step", within=0.5, agrees_after=2)
LOST = "test_no_gradient_is_lost"


@mutant(LOST, kind=KIND, passes="test_training_equals_one_device[sgd_momentum]", differs=SIGNS)
class ThrowsItsRestAway(CompressingStrategy):
    """Sends a compressed gradient, and forgets what that has left out."""

    def keep(self, name, rest):
        pass


@mutant("test_resume_is_bit_exact", kind=KIND, passes=LOST, differs=SIGNS)
class SavesNoRest(CompressingStrategy):
    """Leaves what compression has left out of its checkpoints."""

    def rank_state_dict(self):
        return {"rest": {}}


@mutant("test_resume_is_bit_exact", kind=KIND, passes=LOST, differs=SIGNS)
class RestoresOneRest(CompressingStrategy):
    """Gives all ranks what the compression of rank 0 has left out."""

    def rank_state_dict(self):
        return {"rest": self.broadcast(self.rest)}


@mutant(
    "test_training_equals_one_device[sgd_momentum]",
    kind=KIND,
    passes="test_ranks_agree_in_time",
    differs=SIGNS,
)
class StraysFar(CompressingStrategy):
    """Multiplies its steps by ten."""

    def exchange(self, gradient):
        super().exchange(gradient)
        gradient *= 10


@mutant("test_ranks_agree_in_time", kind=KIND, passes=LOST, differs=NOW_AND_THEN)
class NeverAgrees(LocalStrategy):
    """Averages where the model is used only, and has promised every second step."""

    def after_step(self):
        self.steps += 1
