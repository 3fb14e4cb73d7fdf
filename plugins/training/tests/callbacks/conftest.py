from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    # The tiny module can validate; most tests here have no need to.
    ignore = pytest.mark.filterwarnings(
        r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
    )
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(ignore)
