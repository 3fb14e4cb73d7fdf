import logging
import warnings

import pytest


@pytest.fixture(autouse=True)
def silent(lit):
    """Neither logs nor warnings: pytest puts the filters back."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
