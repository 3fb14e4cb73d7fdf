"""core-parallel against the conformance kit, as any third party's plugin."""

import pytest

from core_parallel import conformance

_BY_HAND = {conformance.TestStagesInParts}
"""Minutes each: four processes, and others hold their parts."""

for _name, _suite in list(vars(conformance).items()):
    if _name.startswith("Test"):
        globals()[_name] = (pytest.mark.exhaustive if _suite in _BY_HAND else pytest.mark.slow)(_suite)

pytestmark = pytest.mark.numbers
