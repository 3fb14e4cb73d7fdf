"""Lines of code that each kind of user loads. A number may fall; one that grows is a decision."""

import functools
import json
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

AUTHOR = """
from core import Strategy
files["a strategy's author"] = loaded()
import core_ddp.strategy
files["a plugin"] = loaded()
"""

LISTING = """
import contextlib, io
from core.cli import main
sys.argv = ["core", "list-strategies"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
files["a listing"] = loaded()
"""

TRAINING = """
import torch
from core import Fabric, Module, Trainer
model = torch.nn.Linear(1, 1)
Fabric(accelerator="cpu").setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
files["a Fabric"] = loaded()

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "watch")
off = {} if takes_defaults else dict.fromkeys(names, False)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 1)))
Trainer(accelerator="cpu", max_steps=1, **off).fit(Net(), data)
files["a fit by default" if takes_defaults else "a fit with everything off"] = loaded()
"""

# Only those who train load what shows errors. All but an author pass over the distributions of
# other programs.
MOST = {
    AUTHOR: {"a strategy's author": 826, "a plugin": 2_820},
    LISTING: {"a listing": 2_620},
    f"takes_defaults = False{TRAINING}": {"a Fabric": 11_150, "a fit with everything off": 16_850},
    f"takes_defaults = True{TRAINING}": {"a Fabric": 11_150, "a fit by default": 20_250},
}


@pytest.mark.parametrize(
    ("program", "most"),
    [
        pytest.param(
            *each, marks=pytest.mark.slow if name in ("training", "defaults") else (), id=name
        )
        for name, each in zip(
            ("author", "listing", "training", "defaults"), MOST.items(), strict=True
        )
    ],
)
def test_what_is_loaded_grows_by_decision_only(program, most, tmp_path):
    # tokens before a statement
    before = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}

    @functools.cache
    def code_lines(path):
        """The number of lines that hold more than a comment or a docstring."""
        lines, is_start = set(), True
        with open(path, "rb") as file:
            for token in tokenize.tokenize(file.readline):
                is_between = token.type in (tokenize.COMMENT, tokenize.NL)
                if (
                    token.type not in before
                    and not is_between
                    and not (token.type == tokenize.STRING and is_start)
                ):
                    lines |= set(range(token.start[0], token.end[0] + 1))
                is_start = token.type in before or (is_between and is_start)
        return len(lines)

    loaded = """
import json, sys

def loaded():
    own = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("core", "core_training", "core_ddp")]
    return [path for module in own if (path := getattr(module, "__file__", None)) and path.endswith(".py")]

files = {}
"""
    command = [sys.executable, "-W", "ignore", "-c", f"{loaded}{program}\nprint(json.dumps(files))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout.splitlines()[-1])
    counts = {user: sum(map(code_lines, {*paths})) for user, paths in files.items()}
    assert {user: count for user, count in counts.items() if count > most[user]} == {}, (
        "lines of code that are loaded"
    )


def test_the_pages_have_these_limits():
    root = Path(__file__).parents[1]
    limits = {user: f"{count:,}" for most in MOST.values() for user, count in most.items()}
    table = (
        (root / "docs" / "benchmarks.md")
        .read_text(encoding="utf-8")
        .partition("| lines at most |")[2]
    )
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == list(limits.values())
    readme = (root / "README.md").read_text(encoding="utf-8")
    (told,) = [line for line in readme.splitlines() if "lines of core's code" in line]
    assert limits["a fit with everything off"] in told
    assert limits["a strategy's author"] in told
