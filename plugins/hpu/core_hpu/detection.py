"""The Gaudi devices that this process may use, found without the vendor's library."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import shutil
import subprocess
from importlib.machinery import PathFinder

from core.accelerators import Absent, Broken, Found
from core_hpu.vendor import LIBRARY

TOOL = "hl-smi"
VISIBLE = "HABANA_VISIBLE_MODULES"
DRIVER_FILES = "/sys/bus/pci/drivers/habanalabs/*:*"
_TOOL_TIMEOUT_S = 20
PRIORITY = 80


def detect() -> Found | Absent | Broken:
    """Ask the vendor's tool for devices, and look for the library where Python would find it."""
    modules = usable_modules()
    if not isinstance(modules, list):
        return modules
    if not is_installed():
        return Broken(
            f"{TOOL} lists {len(modules)} Gaudi devices, and {LIBRARY} isn't installed, which "
            "drives them. Install the vendor's PyTorch packages, or choose accelerator='cpu'"
        )
    return Found(len(modules), PRIORITY)


def is_installed() -> bool:
    """True if the library can be found. Nothing is imported.

    Another package of the vendor's, habana-media-loader, makes the namespace `habana_frameworks`
    alone.
    """
    namespace, _, name = LIBRARY.partition(".")
    outer = importlib.util.find_spec(namespace)
    if outer is None or outer.submodule_search_locations is None:
        return False
    found = PathFinder.find_spec(f"{namespace}.{name}", list(outer.submodule_search_locations))
    return found is not None and found.origin is not None


def usable_modules() -> list[int] | Absent | Broken:
    """Numbers of the modules that this process may use, in the order of its local ranks.

    A module is one device of the machine; `HABANA_VISIBLE_MODULES` names some of them.
    """
    tool = shutil.which(TOOL)
    if tool is None:
        return _without_tool(f"{TOOL} isn't on the PATH")
    listed = _modules_by(tool)
    if isinstance(listed, Broken):
        return listed
    if isinstance(listed, str):
        return _without_tool(listed)
    visible = os.environ.get(VISIBLE)
    if not visible:
        return list(listed)
    try:
        wanted = [int(part) for part in visible.split(",")]
    except ValueError:
        return Broken(f"{VISIBLE}={visible!r}: expected numbers of modules, as in '0,1,2,3'")
    usable = [module for module in wanted if module in listed]
    return usable or Absent(
        f"{VISIBLE}={visible!r} hides every one of the Gaudi devices {list(listed)}"
    )


def _without_tool(reason: str) -> Absent | Broken:
    """The answer where no tool counts the devices: broken if the driver has some."""
    if there := glob.glob(DRIVER_FILES):
        return Broken(
            f"the driver has a Gaudi device, {there[0]}, but {reason}. See whether {TOOL} lists it"
        )
    library = "" if is_installed() else f" and {LIBRARY} isn't installed"
    return Absent(f"{reason}{library}")


@functools.cache
def _modules_by(tool: str) -> tuple[int, ...] | Broken | str:
    """Asked once a process; the reason if the tool fails. One that doesn't answer may have devices
    to tell of.
    """
    command = [tool, "-Q", "module_id", "-f", "csv"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Broken(f"{tool} didn't answer: {error}")
    numbers = [line.strip() for line in done.stdout.splitlines()]
    modules = tuple(sorted(int(number) for number in numbers if number.isdigit()))
    if modules:
        return modules
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"{TOOL} lists no Gaudi device" + (f": {said[-1]}" if done.returncode and said else "")
