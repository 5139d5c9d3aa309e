"""The folder of exported files, and the list of them that lets a later export remove its own outdated ones and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from snugfit.errors import RunFolderError
from snugfit.planner.export.exported_plan import Exported

MANIFEST = "snugfit_exports.json"
"""Per tool the names of the files of its last export into this folder, each with the sha256 of its text."""


def write_export(exported: Exported, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the files of an export, make the folder, and remove files of the tool's last export that this one has not.

    A file that was changed since it was exported stays: it is somebody's own by then.

    Returns:
        The files that were written, and sentences on those that were removed or stay although they are outdated.
    Raises:
        RunFolderError: the folder or a file cannot be read, written or removed.
    """
    paths = [folder / name for name, _ in exported.files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = _manifest(folder)
        for path, (_, text) in zip(paths, exported.files, strict=True):
            path.write_text(text, encoding="utf-8")
        sentences = []
        for name, digest in manifest.get(exported.tool, {}).items():
            if name not in dict(exported.files):
                sentences += _remove(folder / name, digest)
        manifest[exported.tool] = {name: _digest(text.encode()) for name, text in exported.files}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            "--output", f"{folder} cannot be written: {error.strerror}", "Name a folder that can be written."
        ) from error
    return paths, sentences


def _manifest(folder: Path) -> dict[str, Mapping[str, str]]:
    """Return the list of the folder; empty where there is none.

    Raises:
        RunFolderError: it is not such a list.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        names = [name for files in manifest.values() for name in files.items()]
    except (ValueError, AttributeError):
        names = [("", "")]
    # a name with a folder in it would reach files elsewhere
    if not all(isinstance(digest, str) and name == Path(name).name and name for name, digest in names):
        raise RunFolderError(
            "--output", f"{path} is not a list of exported files", "Remove it, or take another folder."
        )
    return dict(manifest)


def _remove(path: Path, digest: str) -> list[str]:
    if not path.is_file():
        return []
    if _digest(path.read_bytes()) != digest:
        return [
            f"{path} is of an earlier export and was changed since, so it stays. This plan has no such file."
        ]
    path.unlink()
    return [f"{path} was of an earlier export and is removed: this plan has no such file."]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
