"""Count the lines that the commonest mistakes show, by the way in which they are run.

python tests/by_hand/shown_errors.py [--only WORDS] [--show LINES] [way ...]

The mistakes are those of tests/launch/test_shown_errors.py, here with `fit` called in a function or a cell. It prints a
table for each way; `--show` prints what is longer than so many lines.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

_TEST = runpy.run_path(str(Path(__file__).parents[1] / "launch" / "test_shown_errors.py"))
_DAMAGE = "big.write_bytes", "os.environ.get('RANK', '0') == '0' and big.write_bytes"
MISTAKES: dict[str, tuple[str, str]] = {
    name: (source.replace(*_DAMAGE).strip(), cause)
    for name, (source, cause) in _TEST["MISTAKES"].items()
    if "rank 1" not in name
}
QUIET = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "IPYTHONDIR": tempfile.gettempdir()}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def common(strategy: str, devices: int) -> str:
    """The classes of the programs, and a Trainer of this strategy unless a program names its own."""
    options = repr({"accelerator": "cpu", "strategy": strategy, "devices": devices})[1:-1]
    text = str(_TEST["COMMON"]).replace("import logging", "import os, logging")
    return text.replace('"accelerator": "cpu"', options)


def in_function(name: str, source: str) -> str:
    """A program as a function of that name. Its class stays outside, where `spawn` can pickle it."""
    classes, body = re.match(r"((?:class .*?\n\n)?)(.*)", source, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{classes}\ndef {name}():\n{textwrap.indent(body, '    ')}\n"


def by_script(command: list[str], strategy: str, devices: int, sources: dict[str, str]) -> dict[str, str]:
    """The stderr of programs, each in a process of its own."""
    shown = {}
    for name, source in sources.items():
        text = f"{common(strategy, devices)}\n{in_function('main', source)}\nif __name__ == '__main__':\n    main()\n"
        shown[name] = run([*command, "program.py"], "program.py", text).stderr
    return shown


def by_pytest(strategy: str, devices: int, sources: dict[str, str]) -> dict[str, str]:
    """The lines that pytest shows of tests that fail, without their own source."""
    names = {f"test_{index}": name for index, name in enumerate(sources)}
    text = common(strategy, devices) + "".join(in_function(test, sources[name]) for test, name in names.items())
    output = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"], "test_program.py", text).stdout
    parts = re.split(r"^_+ (test_\d+) _+\n|^=+ short test summary", output, flags=re.MULTILINE)[1:-1]
    failures = {names[test]: part for test, part in zip(parts[::2], parts[1::2], strict=False)}
    own = re.compile(r"^    def test_\d+\(\):\n(?: .*\n|\n)*|\A\n+", re.MULTILINE)
    return {name: own.sub("", part) for name, part in failures.items()}


def by_notebook(strategy: str, devices: int, sources: dict[str, str]) -> dict[str, str]:
    """The errors that cells show, and their stderr; all in one kernel."""
    import nbclient
    import nbformat

    os.environ.update(QUIET)
    cells = [nbformat.v4.new_code_cell(text) for text in (common(strategy, devices), *sources.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(notebook, timeout=300, allow_errors=True)
        client.execute(cwd=folder)
    return {name: _of_cell(cell) for name, cell in zip(sources, notebook.cells[1:], strict=True)}


def _of_cell(cell: dict[str, list[dict[str, str]]]) -> str:
    texts = []
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            texts.append("\n".join(output["traceback"]))
        elif output.get("name") == "stderr":
            texts.append(output["text"])
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts))


def run(command: list[str], file: str, text: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a new folder that has this file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, file).write_text(text)
        environment = os.environ | QUIET
        return subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )


WAYS: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "script": partial(by_script, [], "auto", 1),
    "ddp": partial(by_script, [], "ddp", 2),
    "ddp_fork": partial(by_script, [], "ddp_fork", 2),
    "ddp_spawn": partial(by_script, [], "ddp_spawn", 2),
    "core run": partial(by_script, ["-m", "core", "run", "--devices", "2"], "ddp", 2),
    "torchrun, 1 rank": partial(by_script, [*TORCHRUN, "1"], "ddp", 1),
    "torchrun": partial(by_script, [*TORCHRUN, "2"], "ddp", 2),
    "pytest": partial(by_pytest, "auto", 1),
    "pytest, ddp_fork": partial(by_pytest, "ddp_fork", 2),
    "pytest, ddp_spawn": partial(by_pytest, "ddp_spawn", 2),
    "notebook": partial(by_notebook, "auto", 1),
    "notebook, 2 ranks": partial(by_notebook, "auto", 2),
}


def main() -> None:
    """Run what is asked for, and print how many lines each mistake takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=list(WAYS), help=f"of {', '.join(map(repr, WAYS))}")
    parser.add_argument("--only", default="", metavar="WORDS", help="mistakes whose names have these words")
    parser.add_argument("--show", type=int, default=10**6, metavar="LINES")
    arguments = parser.parse_args()
    chosen = {name: source for name, (source, _) in MISTAKES.items() if arguments.only in name}
    for way in arguments.ways:
        shown = WAYS[way](chosen)
        for name in chosen:
            text = shown.get(name, "")
            num_lines = len(text.splitlines())
            print(f"{way:20} {name:28} {num_lines:3}{'' if MISTAKES[name][1] in text else ' without the cause'}")
            if num_lines > arguments.show:
                print(textwrap.indent(text, "    | "))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
