"""These tests need the library: `pip install fairscale==0.4.13`. Elsewhere they aren't
collected.
"""

from importlib.util import find_spec

if not find_spec("fairscale"):
    collect_ignore_glob = ["test_*.py"]
