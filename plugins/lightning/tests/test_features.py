"""Small programs give the lines that Lightning 2.6.6 has printed for them; see `features.py`."""

import importlib.util
import logging
from pathlib import Path

import pytest

pytestmark = [pytest.mark.numbers, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
LINES = dict(
    line.split(": ", 1) for line in (HERE / "data" / "features.txt").read_text(encoding="utf-8").splitlines()[:-1]
)
DIFFER: dict[str, str] = {}
"""What core does otherwise, as docs/lightning.md says: the line that it prints."""


@pytest.fixture
def features(installed, tmp_path, monkeypatch):
    """The programs by name."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("lightning_features", HERE / "features.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.disable(logging.CRITICAL)
    yield {each.__name__: lambda each=each: module.line_of(each) for each in module.FEATURES}
    logging.disable(logging.NOTSET)


def test_each_feature_was_compared(features):
    assert list(features) == list(LINES)


@pytest.mark.parametrize("name", LINES)
def test_a_program_prints_what_it_prints_under_lightning(features, name):
    assert features[name]() == f"{name}: {DIFFER.get(name, LINES[name])}"
