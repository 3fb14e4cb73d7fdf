"""The timeline in a run's report: what a callback of any strategy left as `timeline.json`."""

import pytest
from report_pages import page_of


def span(kind, begin_s, end_s, **others):
    return {"kind": kind, "begin_s": begin_s, "end_s": end_s, **others}


ROWS = [
    {
        "name": "rank 0",
        "spans": [span("forward", 0.0, 0.25, label="0"), span("<b>", 0.5, 1.0, detail="b < f")],
    },
    {"name": "rank 1", "spans": [span("forward", 0.25, 0.5)]},
]


def test_a_timeline_is_drawn_with_the_shares_of_each_row(tmp_path):
    page = page_of(tmp_path, timeline={"title": "batch 3", "duration_s": 1.0, "rows": ROWS})
    assert "<h2>Timeline of batch 3</h2>" in page
    assert page.count("<rect ") == 3
    assert "<title>b &lt; f: 500.00 ms</title>" in page
    assert '<rect class="c0" x="150.0" y="0" width="212.5"' in page
    assert '<td title="nothing">25.0%</td>' in page
    assert '<td title="nothing">75.0%</td>' in page
    assert "It took 1000.0 ms. Of all rows together 50.0% is a bubble." in page
    assert "<b>" not in page.partition("Timeline of")[2].partition("<table")[0]


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "{}",
        {"duration_s": 0, "rows": ROWS},
        {"duration_s": "long", "rows": ROWS},
        {"duration_s": 1, "rows": "two"},
        {"duration_s": 1, "rows": [3, {"name": "rank 0", "spans": 5}]},
        {
            "duration_s": 1,
            "rows": [{"name": "rank 0", "spans": [7, span("forward", 2, 1), span("f", 0, "x")]}],
        },
    ],
)
def test_a_damaged_timeline_is_left_out(tmp_path, content):
    page = page_of(tmp_path, timeline=content)
    assert "Timeline" not in page
    assert "loss" in page
