"""The cost of knowing what is installed: CPU time above the bare interpreter, at many fake distributions.

    python benchmarks/discovery.py [--distributions 500] [--runs 15]

Each of them offers two strategies and requires core. Measured in child processes, interleaved; medians, in
milliseconds of user and system time. The target for `core list-strategies` at 500 distributions is 100 ms.
"""

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.fake_distributions import make_distribution  # noqa: E402  (beside the tests, not in a package)

PROGRAMS = {
    "bare interpreter": ["-c", "pass"],
    "import core.registry": ["-c", "import core.registry"],
    "scan": ["-c", "import core.registry; core.registry.discover()"],
    "scan + register": ["-c", "import core.registry; core.registry.plugin_manager()"],
    "scan + register + rows": ["-c", "import core.registry; core.registry.listing('strategy')"],
}
if importlib.util.find_spec("core") and (ROOT / "core" / "__main__.py").exists():
    PROGRAMS["core list-strategies"] = ["-m", "core", "list-strategies"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distributions", type=int, default=500)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder, "site"), options.distributions)
        costs = measure(environment(folder), options.runs)
    report(costs)


def fill(site, count):
    for number in range(count):
        module = f"core_fake{number}"
        lines = f"[core.strategies]\nfake{number} = {module}:Fake\nfake{number}_fast = {module}:fast\n"
        make_distribution(site, f"core-fake{number}", "1.0", lines, requires=["core-training>=0.0.1,<99", "torch>=2.9"])


def environment(folder):
    """Bytecode is cached, as it is in an installed package."""
    path = os.pathsep.join([str(Path(folder, "site")), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CORE_"))}
    return {**kept, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}


def measure(environ, runs):
    costs = {name: [] for name in PROGRAMS}
    for run in range(runs + 1):
        for name, arguments in PROGRAMS.items():
            cost = cpu_ms([sys.executable, *arguments], environ)
            if run:  # the first one fills the caches
                costs[name].append(cost)
    return {name: statistics.median(values) for name, values in costs.items()}


def cpu_ms(command, environ):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def report(costs):
    bare = costs.pop("bare interpreter")
    print(f"{'bare interpreter':26}{bare:8.1f} ms")
    for name, cost in costs.items():
        print(f"{name:26}{cost - bare:+8.1f} ms")


if __name__ == "__main__":
    main()
