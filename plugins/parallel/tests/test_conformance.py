"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel import conformance
from support.short_suites import in_short

_IN_SHORT = (
    conformance.TestParallel,
    conformance.TestShards,
    conformance.TestContext,
    conformance.TestExpert,
)
_BY_HAND = (*_IN_SHORT, conformance.TestStagesInParts)
"""The other suites hold what an axis leaves alone, and the other files of this folder what it
changes.
"""

for _name, _suite in list(vars(conformance).items()):
    if _name.startswith("Test"):
        globals()[_name] = (pytest.mark.exhaustive if _suite in _BY_HAND else pytest.mark.slow)(
            _suite
        )
for _suite in _IN_SHORT:
    globals()[f"{_suite.__name__}InShort"] = pytest.mark.slow(in_short(_suite))

pytestmark = pytest.mark.numbers
