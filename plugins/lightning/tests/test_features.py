"""Small programs give the lines that Lightning 2.6.6 has printed for them; see `features.py`."""

import importlib.util
import logging
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.numbers, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent


def lines_of(name):
    lines = (HERE / "data" / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


LINES = lines_of("features.txt")
DIFFER = lines_of("features_that_differ.txt")
"""What core prints otherwise, for the reasons in docs/lightning-differences.md."""


@pytest.fixture
def features(installed, tmp_path, monkeypatch):
    """The programs by name."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("lightning_features", HERE / "features.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for good: libraries that list all callbacks import it
    spec.loader.exec_module(module)
    logging.disable(logging.CRITICAL)
    yield {each.__name__: lambda each=each: module.line_of(each) for each in module.FEATURES}
    logging.disable(logging.NOTSET)


def test_each_feature_was_compared(features):
    assert list(features) == list(LINES)
    config = tomllib.loads((HERE.parent / "core_lightning" / "differences.toml").read_text(encoding="utf-8"))
    assert {name for each in config["behaviour"] for name in each["features"]} == DIFFER.keys()
    assert all(LINES[name] != line for name, line in DIFFER.items())


@pytest.mark.parametrize("name", LINES)
def test_a_program_prints_what_it_prints_under_lightning(features, name):
    assert features[name]() == f"{name}: {DIFFER.get(name, LINES[name])}"
