"""core-fairscale against the conformance kit, as any third party's plugin."""

import pytest

from core_fairscale import conformance
from support.short_suites import in_short

globals().update({name: suite for name, suite in vars(conformance).items() if name.startswith("Test")})

# `TestDDPSharded` is the whole suite, and test_strategy.py trains with parameters that are unused.
TestShardedUnusedParametersInShort = in_short(conformance.TestShardedUnusedParameters)
pytest.mark.exhaustive(conformance.TestShardedUnusedParameters)
# Scripts of all strategies are started by core, and `TestDDP` starts one in new interpreters.
conformance.TestDDPSharded.new_interpreter = False

pytestmark = pytest.mark.slow
