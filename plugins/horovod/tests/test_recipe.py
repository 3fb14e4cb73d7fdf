"""The recipe for Horovod: the error, the README and tox.ini say the same."""

import shlex
from configparser import ConfigParser
from pathlib import Path

from core_horovod.library import _RECIPE

FOLDER = Path(__file__).parents[1]
WRAPPERS = ("$PWD/cxx20", "$PWD/compiler/cxx20", "{tox_root}/plugins/horovod/compiler/cxx20")


def words(text):
    """Those of the commands, alike where they differ in the folder of the compiler only."""
    for wrapper in WRAPPERS:
        text = text.replace(f"CXX={wrapper}", "CXX=cxx20")
    return shlex.split(text.replace("\\\n", " "))


def test_the_error_has_the_readmes_commands():
    blocks = (FOLDER / "README.md").read_text(encoding="utf-8").split("```console\n")[1:3]
    lines = [block.partition("```")[0].replace("$ ", "", 1).replace("\n$ ", "\n") for block in blocks]
    ours = [word for word in words("".join(lines)) if word != "core-horovod"]
    theirs = words(_RECIPE.partition("chmod +x cxx20\n")[2])
    assert [word for word in ours if ours.count(word) == 1] == [word for word in theirs if theirs.count(word) == 1]


def test_tox_compiles_as_the_error_says():
    tox = ConfigParser(interpolation=None)
    tox.read(FOLDER.parents[1] / "tox.ini", encoding="utf-8")
    section, told = tox["testenv:horovod"], words(_RECIPE.partition("chmod +x cxx20\n")[2])
    variables = section["set_env"].replace(" = ", "=").splitlines()[2:]
    assert set(words("\n".join(variables))) == {word for word in told if "=" in word and word.split("=")[0].isupper()}
    compiling = section["commands_pre"].split("|| python -m ")[1].partition("'")[0]
    assert compiling.split() == told[-len(compiling.split()) :]
