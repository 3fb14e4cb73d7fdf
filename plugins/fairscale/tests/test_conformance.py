"""core-fairscale against the conformance kit, as any third party's plugin."""

import pytest

from core_fairscale import conformance
from support.short_suites import in_short

# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
conformance.TestDDPSharded.new_interpreter = False
TestDDPSharded = conformance.TestDDPSharded
# How a rank is started and what is done about unused parameters are independent of each other.
TestSpawn = conformance.Test_ddp_sharded_spawn
TestWithoutUnused = conformance.Test_ddp_sharded_find_unused_parameters_false
# test_strategy.py trains with parameters that are unused.
TestUnusedParametersInShort = in_short(conformance.TestShardedUnusedParameters)

pytestmark = pytest.mark.slow
