"""What a package manager leaves behind of a package that lists techniques, tasks or trackers."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, distribution: str, group: str, **entries: str) -> None:
    """Write a distribution into a folder of installed packages, with entry points of one group: paths of objects by their names."""
    place = folder / f"{distribution}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    listed = "\n".join(f"{name} = {path}" for name, path in entries.items())
    (place / "entry_points.txt").write_text(f"[{group}]\n{listed}\n")
