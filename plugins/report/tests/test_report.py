"""`core report`: the page of a small run, and of what may stand in its folder."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
import torch
from click.testing import CliRunner

from core import Fabric, Module, Trainer
from core.callbacks import DeviceStatsMonitor, ModelCheckpoint, ThroughputMonitor
from core.loggers import CSVLogger
from core_report import report as command
from core_report.chart import colour_class, line_chart, short_number
from core_report.html_parts import written_as
from core_report.run_summary import duration_text, rate_text

HOSTILE = "<script>alert('\x1b[31m')</script>"


class Net(Module):
    def __init__(self, note):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log_dict(
            {"train_loss": loss, HOSTILE: loss, "gaps": torch.nan if batch_idx == 1 else loss}
        )
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Page(HTMLParser):
    """A page as a browser reads it: elements that were opened and not closed, addresses, and the
    text.
    """

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.addresses, self.text = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open += [tag] * (tag not in ("meta", "br"))
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


def report(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments)], env={"COLUMNS": "80"})


def test_the_page_of_a_run(tmp_path):
    saving = ModelCheckpoint(filename="<b>{step}")
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        log_every_n_steps=1,
        default_root_dir=tmp_path,
        callbacks=[ThroughputMonitor(), DeviceStatsMonitor(), saving],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(HOSTILE), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2))
    folder = tmp_path / "core_logs/version_0"
    done = report(folder)
    assert done.exit_code == 0, done.output
    page = Page((folder / "report.html").read_text())
    text = " ".join(page.text.split())
    assert (page.open, page.addresses) == ([], []), "closed, and in need of nothing"
    assert {"script", "b", "link", "img"}.intersection(page.tags) <= {"b"}
    assert page.tags.count("figure") == page.tags.count("svg") == 7
    assert "<script>alert('\\x1b[31m')</script>" in text
    assert text.startswith("core_logs/version_0")
    (manifest,) = folder.glob("checkpoints/*/manifest.json")
    digests = [entry["digest"] for entry in json.loads(manifest.read_text())["files"].values()]
    assert all(digest in text for digest in digests)
    for part in (
        "strategy single_device auto: 1 device on 1 node core-base 0.1.0",
        f"torch {torch.__version__}",
        "checkpoints/<b>step=8.ckpt",
        "strategy single_device core-base 0.1.0, precision 32-true core-base 0.1.0, 1 process,",
        "throughput/samples_per_s",
        "device/peak_resident_bytes last",
        "8 values, 2 of them not finite",
    ):
        assert part in text, part

    manifest.write_bytes(manifest.read_bytes()[:-40])
    (folder / "run.json").write_text("[")
    (folder / "hparams.json").unlink()
    Fabric(accelerator="cpu", plugins="torch").save(folder / "one.ckpt", {"x": 1})
    one_digest = (folder / ".one.ckpt.digest").read_text().split()[1]
    assert report(folder, "--output", tmp_path / "again.html").exit_code == 0
    text = Page((tmp_path / "again.html").read_text()).text
    assert "is damaged" in text
    assert "doesn't say what was decided" in text
    assert "Hyperparameters" not in text
    assert one_digest in text

    (folder / "metrics.csv").write_text("step,loss\n1," + "9" * (1 << 18))
    assert "metrics.csv is damaged: field larger than" in str(report(folder).exception)

    (folder / "metrics.csv").write_text("step,loss,diverged\n1,abc,nan\n2,3,inf\n3,4,nan,5\n")
    for runs in ([folder], [folder, folder.parent]):
        assert report(*runs, "--output", tmp_path / "again.html").exit_code == 0
        text = Page((tmp_path / "again.html").read_text()).text
        assert "diverged was never finite. Number of values: 3, the last one nan." in text
        assert (
            "metrics.csv has values that are no numbers, which were left out: 2. First: line 2, "
            "'abc'." in text
        )

    (tmp_path / "empty").mkdir()
    done = report(tmp_path / "empty")
    assert (done.exit_code, "expected metrics.csv" in str(done.exception)) == (1, True)


def shown(path):
    return " ".join(
        Page(re.sub("<style>.*?</style>", "", path.read_text(), flags=re.DOTALL)).text.split()
    )


def test_several_runs_side_by_side_and_what_each_tells_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1 2"])

    class Judged(Module):
        """Ends with an error at a step, on demand."""

        def __init__(self, lr, at_step=None, error=None):
            super().__init__()
            self.save_hyperparameters("lr")
            self.layer, self.at_step, self.error = torch.nn.Linear(2, 1), at_step, error

        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == self.at_step:
                raise self.error
            loss = self.layer(batch).square().mean()
            self.log_dict({"train_loss": loss, "val_quality": float(self.trainer.global_step % 3)})
            return loss

        configure_optimizers = Net.configure_optimizers

    def train(folder, lr, *arguments, **options):
        quiet = {
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
        }
        judge = ModelCheckpoint(monitor="val_quality", mode="max", every_n_train_steps=2)
        trainer = Trainer(
            **{"accelerator": "cpu", "max_epochs": 2, **quiet, **options},
            default_root_dir=folder,
            callbacks=judge,
        )
        trainer.fit(
            Judged(lr, *arguments), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)
        )

    train(tmp_path, 0.1)
    with pytest.raises(ValueError, match="too large"):
        train(tmp_path, 0.2, 5, ValueError("too large: got 9,\nexpected 1"))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 0.1, 3, KeyboardInterrupt())
    train(tmp_path, 0.1, max_steps=7)
    runs = tmp_path / "core_logs"
    facts = json.loads((runs / "version_3/run.json").read_text())
    (runs / "version_3/run.json").write_text(json.dumps({**facts, "outcome": "running"}))

    done = report(runs)
    assert done.output.replace("\n", "") == f"The report of 4 runs is in {runs}/report.html."
    text = shown(runs / "report.html")
    assert text.startswith("4 runs of core_logs")
    for part in (
        "version_0 finished 2 of 2 epochs, 8 steps",
        "version_1 failed 1 of 2 epochs, 5 steps",
        "ValueError: too large: got 9, expected 1",
        "version_2 interrupted 0 of 2 epochs, 3 steps",
        "version_3 no end recorded 1 of 2 epochs, 7 steps",
        "Run lr best val_quality best train_loss",
    ):
        assert part in text, (part, text)
    assert text.count("val_quality") == 2, "one heading of a column, one chart"
    svg = re.search(
        r'aria-label="val_quality">(.*?)</svg>', (runs / "report.html").read_text(), re.DOTALL
    )[1]
    assert [f"line c{number}" in svg for number in range(5)] == [True] * 4 + [False]

    assert report(runs / "version_1").exit_code == 0
    text = shown(runs / "version_1/report.html")
    for part in (
        "core_logs/version_1 failed",
        "Trained 1 of 2 epochs, 5 steps Duration 0",
        "steps/s Peak memory, rank 0",
        "python train.py --lr '0.1 2'",
        "It goes on from step 2 with ckpt_path='",
        "Best values Metric Best At step Last val_quality 2 greatest 3 1",
    ):
        assert part in text, (part, text)


def test_a_run_that_has_logged_nothing_has_a_page_too(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_run({"versions": {"torch": "2"}})
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == [], "no folder is made for it"
    folder = logger.folder()
    logger.finalize("success")
    assert report(folder).exit_code == 0
    assert "There are no values to draw" in (folder / "report.html").read_text()


def test_a_chart_keeps_peaks_and_gaps():
    series = [(float(step), 1e300 if step == 5000 else float(step % 3)) for step in range(10_000)]
    series[7000] = (7000.0, float("inf"))
    svg = line_chart("long", {0: series}, short_number)
    drawn = "".join(re.findall(r'class="line c0" d="([^"]*)"', svg))
    points = re.findall(r"[ML]([\d.]+) ([\d.]+)", drawn)
    assert 200 < len(points) < 500
    assert min(float(y) for _, y in points) == 10, "the peak is at the top"
    assert svg.count('class="line c0"') == 2
    assert "1e+300" in svg
    assert 'class="line c0"' in line_chart(
        "least", {0: [(1.0, 0.0), (2.0, 5e-324)]}, short_number
    ), "whose half is 0"
    assert "<circle" in line_chart("one", {0: [(1.0, 2.0)]}, short_number)


def test_a_chart_has_round_ticks():
    def ticks(low, high, shown=short_number, base=10):
        svg = line_chart("it", {0: [(0.0, low), (1000.0, high)]}, shown, base)
        return [text for anchor, text in re.findall(r'text-anchor="(end)">([^<]*)<', svg)]

    assert ticks(0.013, 0.94) == ["0", "0.5", "1"] or ticks(0.013, 0.94) == [
        "0",
        "0.25",
        "0.5",
        "0.75",
        "1",
    ]
    assert len(ticks(3.0, 3.0)) > 2
    assert all(
        text.endswith(" MiB")
        for text in ticks(3 * 2**20, 9 * 2**20, written_as("peak_bytes")[0], 1024)
    )


def test_steps_begin_at_0_where_the_first_values_came_soon():
    def steps(first):
        svg = line_chart("it", {0: [(first, 0.0), (100.0, 1.0)]}, short_number)
        return re.findall(r'text-anchor="middle">([^<]*)<', svg)

    assert steps(2.0)[0] == "0"
    assert steps(80.0)[0] == "80", "a run that was resumed"


def test_more_lines_than_colours_are_told_apart():
    assert (colour_class(1), colour_class(9)) == ("c1", "c1 again")
    svg = line_chart("it", {9: [(0.0, 0.0), (1.0, 1.0)]}, short_number)
    assert 'class="line c1 again"' in svg


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (97_200, "1 d 3 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(9.876, "9.88"), (99.5, "99.5"), (100.4, "100"), (12_345.6, "12,346")]
)
def test_a_rate_has_three_digits_that_count(value, text):
    assert rate_text(value) == text
