"""These tests need the library: `tox run -e deepspeed`. Elsewhere they aren't collected."""

import warnings
from importlib.util import find_spec

if not find_spec("deepspeed"):
    collect_ignore_glob = ["test_*.py"]
else:
    # Once here, and not in each of the ranks that are forked from this process: torch's compiler is behind it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed.runtime.zero.muon.muon_optimizer
        import deepspeed.runtime.zero.stage3  # noqa: F401
