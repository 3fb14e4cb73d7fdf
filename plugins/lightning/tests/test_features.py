"""Small programs give the lines that Lightning 2.6.6 has printed for them; see `features.py`."""

import importlib.util
import logging
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.numbers, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
LINES = dict(
    line.split(": ", 1) for line in (HERE / "data" / "features.txt").read_text(encoding="utf-8").splitlines()[:-1]
)
DIFFER = {
    "stop_with_accumulation": ("(['val 2', 'end 0', 'over 1'], 1, 2, {'loss': 1.90758, 'val': 1.33576}, 1.6991, True)"),
    "max_steps_saves": (
        "[['epoch=0-step=4.ckpt', 'epoch=1-step=6.ckpt'], ['epoch=0-step=4.ckpt'], ['epoch=0-step=4.ckpt', "
        "'epoch=1-step=6.ckpt'], ['epoch=0-step=4.ckpt', 'epoch=1-step=6.ckpt', 'last.ckpt']]"
    ),
}
"""What core prints otherwise, for the reasons in docs/lightning.md."""


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


@pytest.mark.parametrize("name", LINES)
def test_a_program_prints_what_it_prints_under_lightning(features, name):
    assert features[name]() == f"{name}: {DIFFER.get(name, LINES[name])}"
