"""A checkpoint written under any configuration loads under any other, and training goes on as if nothing had been."""

from pathlib import Path

import pytest

from support.portability import ALL, configurations, run_matrix

pytestmark = pytest.mark.numbers
SOME = [
    each.name
    for each in configurations(num_processes=2)
    if each.name in {"single_device-1", "ddp-2", "fsdp+tp-2", "ddp-bf16-2"}
]
MOST = ["fsdp-2", "fsdp-4", "hybrid-4", "fsdp+tp-4"]  # whole copies are whole on any number: `SOME` has them
EVERY = [each.name for each in configurations(num_processes=4)]


def run(names, folder):
    return run_matrix([each for each in configurations(num_processes=4) if each.name in names], folder)


@pytest.fixture(scope="module")
def some_cells(tmp_path_factory):
    return run(SOME, tmp_path_factory.mktemp("some"))


@pytest.fixture(scope="module")
def most_cells(tmp_path_factory):
    return run(MOST, tmp_path_factory.mktemp("most"))


@pytest.fixture(scope="module")
def every_cell(tmp_path_factory):
    return run(EVERY, tmp_path_factory.mktemp("every"))


@pytest.mark.slow
@pytest.mark.parametrize("reader", SOME)
@pytest.mark.parametrize("writer", SOME)
def test_a_pair(some_cells, writer, reader):
    cell = some_cells[writer, reader]
    assert cell.is_good, cell


@pytest.mark.slow
@pytest.mark.parametrize("reader", MOST)
@pytest.mark.parametrize("writer", MOST)
def test_most_pairs(most_cells, writer, reader):
    """Others are a process more or less, or change the precision, as in `test_a_pair`: see `test_every_pair`."""
    cell = most_cells[writer, reader]
    assert cell.is_good, cell


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("reader", EVERY)
@pytest.mark.parametrize("writer", EVERY)
def test_every_pair(every_cell, writer, reader):
    cell = every_cell[writer, reader]
    assert cell.is_good, cell


def test_the_page_has_every_pair():
    page = Path(__file__).with_name("matrix.md").read_text()
    names = [each.name for each in ALL]
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert rows[0] == ["written under", *names]
    assert [row[0] for row in rows[2:]] == names
    assert not any("**" in cell for row in rows[2:] for cell in row)
