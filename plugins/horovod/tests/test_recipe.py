"""The recipe for Horovod: the error, the README and the script say the same."""

import shlex
from pathlib import Path

from core_horovod.library import _RECIPE

FOLDER = Path(__file__).parents[1]
WRAPPERS = ("$PWD/cxx20", "$PWD/compiler/cxx20")


def words(text):
    """Those of the commands, alike where they differ in the folder of the compiler only."""
    for wrapper in WRAPPERS:
        text = text.replace(f"CXX={wrapper}", "CXX=cxx20")
    return shlex.split(text.replace("\\\n", " "))


def test_the_error_has_the_readmes_commands():
    blocks = (FOLDER / "README.md").read_text(encoding="utf-8").split("```console\n")[1:3]
    lines = "\n".join(block.partition("```")[0] for block in blocks).splitlines()
    ours = words(
        "\n".join(line.removeprefix("$ ") for line in lines if not line.endswith(" core-horovod"))
    )
    theirs = words(_RECIPE.partition("chmod +x cxx20\n")[2])
    assert [word for word in ours if ours.count(word) == 1] == [
        word for word in theirs if theirs.count(word) == 1
    ]


def test_the_script_compiles_as_the_error_says():
    script = (FOLDER / "compiler" / "install.sh").read_text(encoding="utf-8")
    ours, theirs = (
        words(script[script.index("CXX=") :]),
        words(_RECIPE.partition("chmod +x cxx20\n")[2]),
    )
    compiling = theirs[theirs.index("CXX=cxx20") :]
    assert [word for word in ours if word not in ("python", "-m")] == compiling
