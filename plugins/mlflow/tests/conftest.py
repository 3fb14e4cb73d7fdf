"""These tests need the library: `pip install mlflow-skinny`. Elsewhere they aren't collected.

Without MLflow's telemetry, whose thread would keep the tests of other packages from forking.
"""

import os
from importlib.util import find_spec

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
if not find_spec("mlflow"):
    collect_ignore_glob = ["test_*.py"]
