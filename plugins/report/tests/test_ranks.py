"""Ranks by time, which a callback left as `ranks.json`, and the bars of goodput, from its
metrics.
"""

import json
import re

import pytest
from click.testing import CliRunner
from report_pages import page_of

from core_report import report

TWO = {
    "first_step": 0,
    "last_step": 10,
    "seconds": [[0.002, 0.008], [0.002, 0.008], [0.002, 0.013]],
}
MORE = {
    "first_step": 10,
    "last_step": 40,
    "seconds": [[0.002, 0.008], [0.001, 0.004], [0.002, 0.008]],
}
CONTENT = {
    "phases": ["data", "<b>"],
    "rows": ["rank 0, one", "rank 1, <i>", "rank 2, two"],
    "columns": [TWO, MORE],
    "named": ["Rank 2 is <s>behind."],
}


def test_ranks_are_drawn_beside_each_other(tmp_path):
    page = page_of(tmp_path, ranks=CONTENT)
    assert '<p class="reason failed">Rank 2 is &lt;s&gt;behind.</p>' in page
    rows = re.findall(r'<div class="strip"><span>(.*?)</span>.*?<span>(.*?)</span></div>', page)
    assert rows == [
        ("rank 0, one", "+0.0%"),
        ("rank 1, &lt;i&gt;", "-25.0%"),
        ("rank 2, two", "+25.0%"),
        ("rank 0, one", "10 ms"),
        ("rank 1, &lt;i&gt;", "7.5 ms"),
        ("rank 2, two", "12.5 ms"),
    ]
    # A quarter of the steps half as long again, so in the full colour; and the rest half as long.
    assert (
        '<rect class="hot" x="0.0" y="0" width="250.0" height="10"><title>step 0 to 10: '
        "+50.0%</title>" in page
    )
    assert (
        '<rect class="cold" x="250.0" y="0" width="750.0" height="10"><title>step 10 to 40: '
        "-50.0%</title>" in page
    )
    assert (
        '<rect class="c1" x="160.0" y="0" width="840.0" height="10"><title>&lt;b&gt;: 10.5 '
        "ms</title>" in page
    )
    assert '<td title="&lt;b&gt;">10.5 ms</td>' in page


def test_the_slowest_of_many_ranks_are_shown(tmp_path):
    seconds = [[0.001 * (1 + rank % 7)] for rank in range(100)]
    column = {"first_step": 0, "last_step": 1, "seconds": seconds}
    rows = [f"rank {rank}" for rank in range(100)]
    page = page_of(
        tmp_path, ranks={"phases": ["data"], "rows": rows, "columns": [column], "named": []}
    )
    assert "Shown are the 64 slowest of 100 ranks." in page
    assert "<span>rank 6</span>" in page
    assert "<span>rank 7</span>" not in page


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "{}",
        CONTENT | {"rows": "abc"},
        CONTENT | {"rows": []},
        CONTENT | {"phases": None},
        CONTENT | {"columns": 5},
        CONTENT
        | {
            "columns": [
                7,
                {"seconds": 3},
                TWO | {"last_step": "x"},
                TWO | {"seconds": [[1, 1], [1, 1]]},
            ]
        },
        CONTENT
        | {"columns": [TWO | {"seconds": [[1], [1], [1]]}, TWO | {"seconds": [[1, -1]] * 3}]},
        json.dumps(CONTENT).replace("0.013", "NaN").replace("0.004", "1e999"),
    ],
)
def test_damaged_ranks_are_left_out(tmp_path, content):
    page = page_of(tmp_path, ranks=content)
    assert "Ranks by time" not in page
    assert "loss" in page


def test_times_of_zero_are_drawn(tmp_path):
    page = page_of(
        tmp_path, ranks=CONTENT | {"columns": [TWO | {"last_step": 0, "seconds": [[0, 0]] * 3}]}
    )
    assert page.count("<span>+0.0%</span>") == page.count("<span>0 ms</span>") == 3


GOODPUT = (
    "step,loss,goodput/useful,goodput/start,goodput/lost,goodput/useful2\n"
    "1,2,0.1,0.9,0,\n"
    "2,2,0.75,0.2,0,0.05\n"
    "3,1,,,,\n"
)


def test_goodput_is_a_bar_of_its_parts(tmp_path):
    page = page_of(tmp_path / "one", metrics=GOODPUT)
    section = page.partition("<h2>Goodput: where the time went</h2>")[2].partition("<h2>")[0]
    assert re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', section) == [
        ("0.0", "750.0"),
        ("750.0", "200.0"),
        ("950.0", "50.0"),
    ]
    assert '<rect class="c2"' in section
    assert "<title>start: 20.0%</title>" in section
    assert "<p>useful 75.0%, start 20.0%, useful2 5.0%.</p>" in section
    # Of its charts only one is left.
    assert re.findall(r"<figcaption><b>(.*?)</b>", page) == ["loss", "goodput/useful"]


def test_each_run_with_goodput_has_a_bar(tmp_path):
    page_of(tmp_path / "one", metrics=GOODPUT)
    page_of(tmp_path / "two", metrics=GOODPUT.replace("0.75", "1.75"))  # more than all: scaled
    page_of(tmp_path / "three")
    assert (
        CliRunner()
        .invoke(report, [str(tmp_path), "--output", str(tmp_path / "all.html")])
        .exit_code
        == 0
    )
    page = (tmp_path / "all.html").read_text()
    rows = re.findall(r'<div class="strip"><span>(.*?)</span>.*?<span>(.*?)</span></div>', page)
    assert rows == [("one", "75.0% useful"), ("two", "87.5% useful")]
    assert "Goodput: where" not in page_of(tmp_path / "three")
