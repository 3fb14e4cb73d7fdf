"""Without MLflow's telemetry, whose thread would keep the tests of other packages from forking."""

import os

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
