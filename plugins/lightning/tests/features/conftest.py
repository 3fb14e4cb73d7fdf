import logging
import warnings

import pytest


@pytest.fixture
def lit(loaded, tmp_path, monkeypatch):
    """Small nets for Lightning."""
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # until the test ends: pytest puts the filters back
    yield loaded("features/small.py")
    logging.disable(logging.NOTSET)
