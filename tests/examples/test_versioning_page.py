"""docs/versioning.md shows the error that an excluded release of core really gives."""

import os
import sys
from pathlib import Path

from core_testing import programs
from support.fake_distributions import make_distribution


def test_an_incompatible_plugin_is_refused_in_these_words_before_its_import(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "versioning.md"
    make_distribution(
        tmp_path,
        "core-acme",
        entry_points_text="[core.strategies]\nacme = core_acme:Acme\n",
        requires=["core-base>=0.0.3,<0.1"],
        modules={"core_acme": "raise RuntimeError('it was imported')"},
    )
    program = "from core import Fabric; Fabric(strategy='acme', accelerator='cpu')"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = programs.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path})
    message = done.stderr.splitlines()[-1].rpartition("core.")[2]
    assert message.startswith("IncompatiblePluginError: ")
    assert message in " ".join(page.read_text(encoding="utf-8").split())
