"""Pages: links lead somewhere, each has its place on the site, and what they name is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]+)?\)")


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files_and_headings(page):
    links = [
        (target, anchor)
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8"))
        if ":" not in target
    ]
    lost = [target for target, _ in links if not (page.parent / target).exists()]
    ends = [
        ((page.parent / target) if target else page, anchor) for target, anchor in links if anchor
    ]
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

    def anchors_of(page):
        """The anchors that a code host makes of a page's headings."""
        text = fence.sub("", page.read_text(encoding="utf-8"))
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
        return {
            "#" + re.sub(r"[^\w -]", "", heading).strip().replace(" ", "-") for heading in plain
        }

    lost += [
        f"{end.name}{anchor}"
        for end, anchor in ends
        if end.suffix == ".md" and anchor not in anchors_of(end)
    ]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_has_what_a_page_links_to(page):
    """`tox run -e docs` builds it: what a page links to must be there, and code be left out of
    `nav`.
    """
    lines = re.findall(
        r"^MARKDOWN \+?= (\[.*?\])$",
        (ROOT / "docs/site/pages.py").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    pages = {
        path for line in lines for pattern in ast.literal_eval(line) for path in ROOT.glob(pattern)
    }
    outside = (
        (ROOT / "mkdocs.yml")
        .read_text(encoding="utf-8")
        .partition("not_in_nav: |\n")[2]
        .partition("\n\n")[0]
    )
    linked = [
        target
        for target, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if target and ":" not in target
    ]
    paths = [(page.parent / target).resolve() for target in linked]
    assert [str(path) for path in paths if path.suffix == ".md" and path not in pages] == []
    parts = {path.relative_to(ROOT).parts[0] for path in paths if path.suffix != ".md"}
    assert {part for part in parts if f"  /{part}/" not in outside} == set()


def test_pages_that_code_names_are_there():
    """Errors and docstrings send their readers to `docs/...`."""
    sources = [
        *ROOT.glob("core/**/*.py"),
        *ROOT.glob("plugins/*/core_*/**/*.py"),
        *ROOT.glob("benchmarks/*.py"),
    ]
    named = {
        name
        for path in sources
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 3
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_its_place_on_the_site(page):
    assert f" {page.relative_to(ROOT)}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "debugging": "debug",
        "export": "export",
        "fine-tuning": "freeze layers and fine-tune",
        "config-files": "hyperparameters",
        "gradient-accumulation": "gradient accumulation",
        "gradient-clipping": "gradient clipping",
        "learning-rate-schedules": "learning-rate schedules: warm-up",
        "linear-cross-entropy": "cross entropy",
        "lora": "lora",
        "mixed-precision": "mixed precision",
        "out-of-memory": "out of memory",
        "packing": "packing",
        "profiling": "profiling",
        "resume": "resume",
        "several-nodes": "several nodes: multi-node",
        "sweeps": "sweeps",
        "testing": "test your module with pytest",
        "tutorial": "tutorial",
    }.items(),
)
def test_a_page_has_the_words_that_people_search_in_its_title(name, words):
    """A title counts most in the site's search; tests/site looks into that."""
    title, _, _ = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").partition("\n")
    assert words in title.lower()


@pytest.mark.parametrize(
    ("pattern", "most"),
    {
        "README.md": 1_000,
        "docs/*.md": 46_000,
        "docs/**/*.md": 59_500,
        "plugins/*/README.md": 12_000,
    }.items(),
)
def test_pages_have_at_most_so_many_words(pattern, most):
    """As `wc -w` counts them. A limit may fall, and not rise: say a thing once, and link to it."""
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in ROOT.glob(pattern))
    assert words <= most


def promises():
    """The rows of those tables on the page of reliability that hold promises."""
    rows, is_promise = [], False
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines():
        is_promise = line.startswith("| promise |") or (is_promise and line.startswith("|"))
        if is_promise and not line.startswith(("| promise |", "| ---")):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            rows.append(pytest.param(cells, id=cells[0][:60]))
    return rows


@pytest.mark.parametrize("cells", promises())
def test_a_promise_names_a_test_that_there_is(cells):
    _, held_by = cells
    named = re.findall(r"`(?:python )?([\w./]+\.py)|`(test_\w+)`", held_by)
    assert named
    files = [ROOT / name for name, _ in named if name]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    assert all(f"def {name}(" in tests for _, name in named if name)


def test_the_opening_fits_on_a_screen_and_installs_before_it_runs():
    opening = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert len(opening.splitlines()) < 55
    program = opening.partition("```python")[2]
    assert max(map(len, program.splitlines())) <= 88, "what fits on the site at 1280 pixels"
    assert opening.index("pip install") < opening.index("```python")
    assert "One GPU has been used so far" in opening
    assert "```python" in opening
