"""Installed distributions made of a few files: enough for discovery, and for an import."""

import textwrap
from pathlib import Path


def make_distribution(
    path,
    name,
    version="1.0",
    entry_points_text="",
    *,
    requires=(),
    modules=None,
    summary="",
    folder=None,
    metadata=None,
):
    """Write a `.dist-info` folder below `path`, and modules beside it. Returns the folder.

    Args:
        path: what stands on `sys.path`; made if it isn't there.
        name: of the distribution.
        version: its version.
        entry_points_text: content of `entry_points.txt`, str or bytes; empty: there is none.
        requires: its `Requires-Dist` lines.
        modules: source code by module name; a dotted name makes packages.
        summary: its one-line description.
        folder: name of the `.dist-info` folder, if it isn't the usual one.
        metadata: content of `METADATA`, str or bytes, if it isn't the usual one; False: there is
            none.
    """
    path = Path(path)
    info = path / (folder or f"{name.replace('-', '_')}-{version}.dist-info")
    info.mkdir(parents=True)
    if metadata is None:
        headers = [f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
        headers += [f"Requires-Dist: {line}" for line in requires]
        metadata = "\n".join(
            ["Metadata-Version: 2.4", *headers, "", "Name: not a header any more", ""]
        )
    if metadata is not False:
        _write(info / "METADATA", metadata)
    if entry_points_text:
        _write(info / "entry_points.txt", entry_points_text)
    for module, source in (modules or {}).items():
        _write_module(path, module, source)
    return info


def _write(file, content):
    file.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())


def _write_module(path, module, source):
    *packages, last = module.split(".")
    for package in packages:
        path = path / package
        path.mkdir(exist_ok=True)
        (path / "__init__.py").touch()
    _write(path / f"{last}.py", source)
