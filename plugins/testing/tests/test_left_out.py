"""What can't apply to a plugin isn't collected, unless a report is to tell of it."""

from collections import defaultdict
from pathlib import Path

import pytest

from core_testing import ConformanceReport

SUITES = Path(__file__).with_name("left_out_suites.py")
OF_CAPABILITY, OF_SEVERAL = "test_gathers_objects", "test_ranks_that_part_are_found"
OF_PACKAGE, OF_ALL = "test_requirement_on_core_is_bounded", "test_pickles"


class Collected:
    def __init__(self):
        self.tests = defaultdict(set)

    def pytest_collection_finish(self, session):
        for item in session.items:
            self.tests[item.cls.__name__].add(item.originalname)


def collect(*plugins):
    collected = Collected()
    options = [
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-c",
        "/dev/null",
    ]
    pytest.main([*options, "--rootdir", "/", str(SUITES)], plugins=[collected, *plugins])
    return collected.tests


def test_what_a_suite_knows_not_to_apply_is_not_collected():
    found = collect()
    assert found["TestPinned"].isdisjoint({OF_CAPABILITY, OF_SEVERAL, OF_PACKAGE})
    assert OF_ALL in found["TestPinned"]
    assert OF_CAPABILITY in found["TestOpen"], "who pins nothing has to make the plugin, to know"
    assert len(found["TestElsewhere"]) == 1, "one test says which device is missing"
    assert OF_ALL in found["TestSimulated"], "a fixture may bring the device"


def test_a_report_tells_of_all():
    found = collect(ConformanceReport())
    assert {OF_ALL, OF_CAPABILITY, OF_SEVERAL, OF_PACKAGE} < found["TestPinned"]
    assert found["TestPinned"] == found["TestElsewhere"]


def test_what_is_left_out_has_a_row_with_its_reason():
    report = ConformanceReport(is_whole=False)
    collect(report)
    reasons = {
        row.test: row.reason for nodeid, row in report.rows.items() if "::TestPinned::" in nodeid
    }
    assert "does not declare COLLECTIVES" in reasons[OF_CAPABILITY]
    assert reasons[OF_SEVERAL] == "single_device is tested in one process"
    assert report.capabilities("single_device")["COLLECTIVES"] == "not declared"
