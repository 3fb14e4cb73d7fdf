"""The conformance suites of core-parallel. Imported by `core check` and the tests only: it needs
pytest.
"""

from core import Capability
from core_testing import PARALLEL, StrategyConformance, StrategySmoke

_CAPABILITIES = PARALLEL & ~Capability.REPLICATED_PARAMETERS | Capability.SHARDED_STATE
_PARTS_ALONE = "its step calls the parts one by one, which are on two ranks: refused by name"

_STAYS = "sharded modules need their group as long as they live, and it stays that long"


class TestPipeline(StrategyConformance):
    """Two ranks of one pipeline, which have their data in common."""

    alias = "pipeline"
    # with options: the kit's script reads the whole module from one rank
    options = {"microbatches": "auto"}
    data_parallel_size = 1
    expected_capabilities = _CAPABILITIES | Capability.OWNS_GRADIENTS
    known_failures = {"test_training_equals_one_device[two_optimizers]": _PARTS_ALONE}


class TestParallel(StrategyConformance):
    """Two ranks, each with its share of the data."""

    alias = "parallel"
    new_interpreter = False
    expected_capabilities = _CAPABILITIES


class TestSchedule(StrategySmoke):
    """Two ranks of one pipeline, whose training steps go through a schedule."""

    alias = "pipeline"
    options = {"schedule": "1F1B"}
    data_parallel_size = 1


class TestPipelines(StrategySmoke):
    """Two pipelines of two ranks, each with its share of the data."""

    alias = "parallel"
    options = {"pipeline": 2}
    num_processes = 4
    data_parallel_size = 2


class TestShards(StrategyConformance):
    """Two ranks, each with its share of the data and a part of every parameter."""

    alias = "parallel"
    new_interpreter = False
    options = {"shard": "auto", "data": 1}
    expected_capabilities = _CAPABILITIES & ~Capability.INFERENCE_MODE
    known_failures = {"test_teardown_leaves_nothing[process_group]": _STAYS}


class TestContext(StrategyConformance):
    """Two ranks of one context group, which exchange heads."""

    alias = "parallel"
    new_interpreter = False
    options = {"context": "auto", "data": 1}
    data_parallel_size = 1
    length = 4
    expected_capabilities = _CAPABILITIES
    known_failures = dict.fromkeys(
        ("test_training_equals_one_device[batch_norm]", "test_every_part_comes_back"),
        "a batch norm would see a part of the sequence: refused by name",
    )


class TestGather(StrategySmoke):
    """The same, which gather keys and values."""

    alias = "parallel"
    options = {"context": 2, "context_attention": "gather"}
    data_parallel_size = 1
    length = 4


class TestExpert(StrategyConformance):
    """Two ranks, each with its share of the data and half of the experts."""

    alias = "parallel"
    new_interpreter = False
    options = {"expert": 2}
    other_num_processes = None
    num_experts = 4
    expected_capabilities = _CAPABILITIES & ~Capability.INFERENCE_MODE | Capability.OWNS_GRADIENTS
    known_failures = {"test_teardown_leaves_nothing[process_group]": _STAYS}


class TestTensor(StrategySmoke):
    """Two tensor groups of two ranks, each with its share of the data."""

    alias = "parallel"
    options = {"tensor": 2}
    num_processes = 4
    data_parallel_size = 2


class TestStagesInParts(StrategyConformance):
    """One pipeline of two stages, whose layers are cut over two ranks each."""

    alias = "parallel"
    new_interpreter = False
    options = {"pipeline": 2, "tensor": 2, "data": 1}
    num_processes = 4
    data_parallel_size = 1
    other_num_processes = None
    expected_capabilities = _CAPABILITIES | Capability.OWNS_GRADIENTS
    known_failures = {
        "test_training_equals_one_device[two_optimizers]": _PARTS_ALONE,
        "test_teardown_leaves_nothing[process_group]": _STAYS,
    }
