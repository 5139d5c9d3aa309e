"""The results of tools, beside the runs of a recipe: `<output>/<name>/tools/<tool>/<time>-<random>/found.json`.

A cross-validation, whose folder holds runs, lies beside `tools`: `<output>/<name>/cv/<time>-<random>/found.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError
from snugfit.results.run_folder import RunFolder
from snugfit.system.json_text import parse_json

RESULT = "found.json"


def new_folder(output: Path, name: str, tool: str) -> Path:
    """Return a folder for what `tool` will find about the recipe `name`.

    Raises:
        RunFolderError: it cannot be written.
    """
    return RunFolder.create(Path(output) / name / "tools", tool).path


def keep(
    folder: Path, tool: str, identity: Mapping[str, Any], summary: str, result: Mapping[str, Any]
) -> Path:
    """Write what was found, as plain values, into a folder, made where it is not there; returns the file.

    Args:
        identity: of the setup, such as the recipe's hash.
        summary: what was found, in a sentence.
    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        header = {"tool": tool, "identity": dict(identity), "summary": summary}
        RunFolder(folder).write_json(RESULT, header | dict(result))
    except OSError as error:
        raise RunFolderError(
            folder,
            f"what was found cannot be written: {error.strerror}",
            "Free space, or name a folder that can be written.",
        ) from error
    return folder / RESULT


def results(output: Path, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folders of tools and what was found in them about the recipe `name`, the newest of each tool first."""
    home = Path(output, name)
    for path in sorted([*home.glob(f"tools/*/*/{RESULT}"), *home.glob(f"cv/*/{RESULT}")], reverse=True):
        try:
            yield path.parent, parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # torn, or of something else
            continue
