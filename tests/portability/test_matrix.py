"""A checkpoint written under any configuration loads under any other, and training goes on as if nothing had been."""

import pytest

from portability.matrix import configurations, run_matrix

NAMES = [each.name for each in configurations()]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return run_matrix(configurations(), tmp_path_factory.mktemp("portability"))


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_a_pair(cells, writer, reader):
    cell = cells[writer, reader]
    assert cell.difference <= cell.tolerance, cell
