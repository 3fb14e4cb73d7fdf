"""The built site in a real browser: `tox run -e docs`. SITE is its folder; SITE_PICTURES, where
screenshots go.
"""

import copy
import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.site
webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium drives the browser: `tox run -e docs`"
)
waiting = pytest.importorskip("selenium.webdriver.support.wait")

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}

FIRST = {
    "mixed precision": "docs/mixed-precision",
    "bf16": "docs/mixed-precision",
    "out of memory": "docs/out-of-memory",
    "activation checkpointing": "docs/out-of-memory",
    "multi-node": "docs/several-nodes",
    "several nodes": "docs/several-nodes",
    "gradient accumulation": "docs/gradient-accumulation",
    "gradient clipping": "docs/gradient-clipping",
    "clip": "docs/gradient-clipping",
    "warm-up": "docs/learning-rate-schedules",
    "warmup": "docs/learning-rate-schedules",
    "learning rate schedule": "docs/learning-rate-schedules",
    "freeze layers": "docs/fine-tuning",
    "fine-tuning": "docs/fine-tuning",
    "LoRA": "docs/lora",
    "debug": "docs/debugging",
    "profiling": "docs/profiling",
    "sweep": "docs/sweeps",
    "optuna": "docs/sweeps",
    "hyperparameters": "docs/config-files",
    "config file": "docs/config-files",
    "resume": "docs/resume",
    "tutorial": "docs/tutorial",
    "onnx": "docs/tutorial",
    "fsdp": "docs/fsdp",
    "save checkpoint": "docs/checkpoints",
}
"""The page that comes first for the words that people search."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    """The folder of the site, and where it is served."""
    if BROWSER is None or DRIVER is None:
        pytest.skip(
            "needs chromium and chromedriver (Debian's packages chromium and chromium-driver)"
        )
    folder = Path(os.environ["SITE"])
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    )
    threading.Thread(target=server.serve_forever).start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(site, tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def resize(browser, size):
    """Make the screen that of such a device."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def show(browser, url, size, scheme):
    """Open a page as a device of that size and colour would."""
    resize(browser, size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(url)


def pages(folder):
    return sorted(
        path.relative_to(folder).as_posix().removesuffix("index.html")
        for path in folder.rglob("index.html")
    )


@pytest.mark.timeout(3600)  # a browser opens some hundred pages, and waits for each
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_is_quiet(site, browser, scheme):
    """No page is wider than the screen, writes an error to the console, or asks another host for
    anything.
    """
    folder, root = site
    show(browser, root, "desktop", scheme)
    browser.execute_script("localStorage.clear()")  # the theme keeps what a reader has seen first
    browser.get_log("browser")

    def requested(browser):
        """The addresses that were asked for since the last call."""
        events = [
            json.loads(entry["message"])["message"] for entry in browser.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    requested(browser)
    too_wide, schemes = {}, set()
    # Of these pages pictures are kept, dark and light. Of the others, what the browser measures is
    # looked at alone.
    pictured = [
        "",
        "docs/tutorial/",
        "docs/mixed-precision/",
        "docs/trainer/",
        "docs/support/",
        "docs/backends/",
        "docs/contracts/strategy/",
        "api/core/",
        "api/core_training/",
    ]
    shown = pages(folder) if scheme == "light" else pictured
    for page in shown:
        show(browser, root + page, "desktop", scheme)
        for size, (width, _) in SIZES.items():  # to open it again for each takes twice as long
            resize(browser, size)
            widest = browser.execute_script(
                "return Math.max(innerWidth, document.documentElement.scrollWidth)"
            )
            if widest > width:
                too_wide[page, size] = widest
            if page in pictured and "SITE_PICTURES" in os.environ:
                name = f"{page.strip('/').replace('/', '-') or 'start'}-{size}-{scheme}.png"
                browser.save_screenshot(str(Path(os.environ["SITE_PICTURES"], name)))
        schemes.add(
            browser.execute_script("return document.body.getAttribute('data-md-color-scheme')")
        )
    assert len(shown) > 5
    assert too_wide == {}
    assert schemes == {"default" if scheme == "light" else "slate"}
    assert [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ] == []
    hosts = {urlsplit(url).netloc for url in requested(browser) if url.startswith(("http", "ws"))}
    assert hosts == {urlsplit(root).netloc}


def search(browser, root, size, words):
    """The addresses of what the search finds, best first."""
    show(browser, root, size, "light")
    if size == "phone":
        browser.find_element("css selector", "label.md-header__button[for=__search]").click()
    wait = waiting.WebDriverWait(browser, 20)
    field = browser.find_element("css selector", "input.md-search__input")
    wait.until(lambda _: field.is_displayed())
    field.click()
    field.send_keys(words)
    results = "a.md-search-result__link"
    wait.until(lambda _: browser.find_elements("css selector", results))
    time.sleep(0.5)  # results come letter by letter
    if "SITE_PICTURES" in os.environ:
        name = f"search-{words.replace(' ', '-')}-{size}.png"
        browser.save_screenshot(str(Path(os.environ["SITE_PICTURES"], name)))
    return [link.get_attribute("href") for link in browser.find_elements("css selector", results)]


@pytest.mark.parametrize("size", SIZES)
def test_the_search_finds_a_word(site, browser, size):
    links = search(browser, site[1], size, "StochasticWeightAveraging")
    assert any("/api/core.callbacks/" in link for link in links), links


@pytest.mark.parametrize(("words", "page"), FIRST.items())
def test_what_people_search_finds_its_page_first(site, browser, words, page):
    first = search(browser, site[1], "desktop", words)[0]
    assert urlsplit(first).path == f"/{page}/", first


@pytest.mark.parametrize(
    "page", ["", "docs/tutorial/", "docs/trainer/", "docs/fabric/", "api/core/"]
)
def test_programs_fit_beside_the_sidebars(site, browser, page):
    show(browser, site[1] + page, "desktop", "light")
    blocks = "[...document.querySelectorAll('pre > code')]"
    overflow = browser.execute_script(
        f"return {blocks}.map(code => code.scrollWidth - code.clientWidth)"
    )
    assert overflow
    assert max(overflow) <= 0


@pytest.mark.parametrize("size", SIZES)
def test_the_cards_fit_beside_each_other(site, browser, size):
    show(browser, site[1] + "docs/backends/", size, "light")
    right = browser.execute_script(
        "return document.querySelector('#cards').getBoundingClientRect().right"
    )
    assert right <= SIZES[size][0]


def test_the_api_begins_with_what_everybody_uses(site, browser):
    show(browser, site[1] + "api/core/", "desktop", "light")
    names = [
        link.text for link in browser.find_elements("css selector", "article td:first-child a")
    ]
    assert names[:2] == ["Trainer", "Fabric"]


def test_a_link_to_code_leads_to_its_page(site, browser):
    _, root = site
    show(browser, root + "docs/trainer/", "desktop", "light")
    browser.find_element("partial link text", "gan.py").click()
    assert browser.find_element("css selector", "h1").text.startswith("examples/gan.py")


def test_programs_find_every_page_as_markdown(site):
    folder, _ = site
    listed = re.findall(
        r"^- \[.+\]\((.+)\)$", folder.joinpath("llms.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {"README.md", "docs/trainer.md", "plugins/ddp/README.md", "api/core_training.md"} <= {
        *listed
    }
    assert all(
        folder.joinpath(page).read_text(encoding="utf-8").startswith("# ") for page in listed
    )
    assert "fit(model: nn.Module" in folder.joinpath("api/core_training.md").read_text(
        encoding="utf-8"
    )


def test_results_with_a_core_two_minor_releases_old_are_grey():
    spec = importlib.util.spec_from_file_location(
        "pages", Path(__file__).parents[2] / "docs" / "site" / "pages.py"
    )
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    results = [copy.deepcopy(pages.results()[0]) for _ in range(3)]
    for number, result in enumerate(results):
        result["versions"]["core"] = f"0.{number + 3}.1"
    rows = [line for line in pages.cards_table(results).splitlines() if line.startswith("<tr")]
    assert rows == ['<tr class="cards-old">', "<tr>", "<tr>"]
