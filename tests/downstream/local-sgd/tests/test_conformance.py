"""With a period of one step, all but what isn't linear in the gradient equals one device. With any, ranks meet."""

from core import Capability
from core.testing import StrategyConformance, StrategySmoke

NOT_LINEAR = "each rank's Adam sees its own gradients, and not their mean"
CLIPS_ALONE = "each rank clips its own gradient, and not their mean"
EQUALS = "test_training_equals_one_device"


class TestEveryStep(StrategyConformance):
    alias = "local_sgd"
    options = {"period": 1}
    expected_capabilities = Capability.COLLECTIVES | Capability.BIT_EXACT_RESUME
    known_failures = {
        f"{EQUALS}[adam]": NOT_LINEAR,
        f"{EQUALS}[adamw]": NOT_LINEAR,
        f"{EQUALS}[adamw_fused]": NOT_LINEAR,
        f"{EQUALS}[parameter_groups]": NOT_LINEAR,
        f"{EQUALS}[accumulated]": NOT_LINEAR,
        f"{EQUALS}[fabric]": NOT_LINEAR,
        f"{EQUALS}[clipped_by_norm]": CLIPS_ALONE,
        f"{EQUALS}[accumulated_and_clipped]": CLIPS_ALONE,
        f"{EQUALS}[fabric_accumulated]": CLIPS_ALONE,
        "test_gradient_clipping_returns_the_norm": CLIPS_ALONE,
        "test_optimizer_state_equals_one_device": NOT_LINEAR,
        "test_goes_on_under_one_device": NOT_LINEAR,
        "test_goes_on_in_another_number_of_processes": NOT_LINEAR,
        "test_goes_on_from_one_device": NOT_LINEAR,
    }


class TestNowAndThen(StrategySmoke):
    alias = "local_sgd"
    options = {"period": 4}
    known_failures = {"test_trains": "ranks go their own ways between two averages"}
