"""Rows or a script to begin with: those that are named, or the ones that lie in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import Fault
from snugfit.data.file_formats import READERS
from snugfit.data.hub_rows import is_hub_name, is_saved
from snugfit.errors import DataError
from snugfit.models.folders import CONFIG
from snugfit.tasks import discover
from snugfit.tasks.recognition import Rows, Script
from snugfit.tools.init.local_models import LocalModel, model_at, models_in, named_model
from snugfit.tools.init.surroundings import (
    Surroundings,
    no_task,
    nothing_here,
    picture_folders,
    read_picture_folder,
    read_rows,
    read_script,
    survey,
)

Tell = Callable[[str], None]

_SCRIPT = ".py"


@dataclass(frozen=True)
class Source:
    """Rows or a script, and where they are.

    Args:
        folder: where the recipe is written.
        faults: of rows that cannot be read.
        validation, test: files for that.
        sample: the text of rows of ours, where there are none; it is not written yet.
    """

    content: Rows | Script
    folder: Path
    faults: tuple[Fault, ...] = ()
    validation: Path | None = None
    test: Path | None = None
    sample: str | None = None

    @property
    def path(self) -> Path:
        return self.content.path


def find_model(source: str | None) -> LocalModel | None:
    """Return the model that the source names; None where it names none."""
    if source is None:
        return None
    path = Path(source).expanduser()
    if path.name == CONFIG and path.is_file():
        path = path.parent
    if path.is_dir():
        return model_at(path, str(path), f"in {path}") if (path / CONFIG).is_file() else None
    if path.exists() or path.suffix.lower() in (*READERS, _SCRIPT) or source.count("/") > 1:
        return None
    return named_model(source)


def find_source(source: str | None, model: LocalModel | None, given: Mapping[str, Any], tell: Tell) -> Source:
    """Return the rows or the script to begin with.

    Raises:
        DataError: there are none.
    """
    if source is not None and is_hub_name(source):
        raise DataError(
            "init",
            f"takes what lies on this machine, got {source}",
            f"Train on it at once: snugfit train --data {source} --text COLUMN --label COLUMN --model MODEL",
        )
    path = Path.cwd() if source is None else Path(source).expanduser()
    if model is not None:
        at = Path.cwd() if source is None or not path.is_dir() or (path / CONFIG).is_file() else path
        if model.kind == "pictures":
            if pictures := _pictures_of(at, tell):
                return pictures
            raise nothing_here(survey(at))
        inside = survey(path) if path.is_dir() else None
        here = inside if inside is not None and inside.tables else survey(Path.cwd())
        if not here.tables:
            return _sample(model, given)
        return _rows_of(here, None, given, tell)
    if path.is_file() and path.suffix == _SCRIPT:
        return Source(read_script(path), path.parent)
    if path.is_file() and path.suffix.lower() not in READERS:
        read_rows(path)  # says what is wrong with it, or which files can be read
    if not path.is_dir() or is_saved(path):
        if not path.exists():
            read_rows(path)  # says so, with the nearest name
        return _rows_of(survey(path.parent), path, given, tell)
    here = survey(path)
    if here.tables:
        return _rows_of(here, None, given, tell)
    if here.pictures and (pictures := _pictures_of(path, tell)):
        return pictures
    for each in here.scripts:
        script = read_script(each)
        if any(card.recognize(script, {}) for card in discover().values()):
            return Source(script, path)
    if here.scripts and not here.pictures:
        names = ", ".join(each.name for each in here.scripts[:4])
        raise DataError(
            path,
            f"holds {names}, and no script with a model and rows that can be imported without training",
            f"Keep your loop, and put a step into it: snugfit init --from {here.scripts[0].name}",
        )
    here_models = [each for each in models_in(path) if each.folder != path]
    if here_models and not here.pictures:
        return _sample(here_models[0], given)
    raise nothing_here(here)


def _rows_of(here: Surroundings, path: Path | None, given: Mapping[str, Any], tell: Tell) -> Source:
    """Return the rows of a file, or of the first of a folder's files that a task has a use for."""
    own = path is not None
    problem: DataError | None = None
    for each in [path] if path is not None else here.tables:
        tell(f"reading {each.name} …")
        try:
            rows, faults = read_rows(each)
        except DataError as error:
            problem = problem or error
            continue
        if any(card.recognize(rows, given.get("data") or {}) for card in discover().values()):
            validation = _alike(here.validation, rows) if path != here.validation else None
            folder = Path.cwd() if own else here.folder
            return Source(rows, folder, faults, validation, here.test)
        problem = problem or no_task(rows)
    assert problem is not None
    raise problem


def _pictures_of(folder: Path, tell: Tell) -> Source | None:
    """Return the pictures of a folder by their classes; None where it has none in folders of classes."""
    folders = picture_folders(folder)
    if folders is None:
        return None
    tell(f"looking at the pictures in {folders.train.name} …")
    rows = read_picture_folder(folders.train)
    # beside the pictures, not among them; where they are all there is, in their folder
    parted = folders.train.parent if folders.validation or folders.test else folders.train
    place = parted if parted.resolve() == Path.cwd() else parted.parent
    return Source(rows, place, (), folders.validation, folders.test)


def _alike(path: Path | None, rows: Rows) -> Path | None:
    """Return a file of rows if it has the columns of others."""
    if path is None:
        return None
    with suppress(DataError):
        if set(read_rows(path)[0].columns) >= set(rows.columns):
            return path
    return None


def _sample(model: LocalModel, given: Mapping[str, Any]) -> Source:
    """Return a few rows that show the form, for a model without rows."""
    cards = [card for card in discover().values() if card.sample is not None]
    wanted = given.get("task")
    fitting = [
        card for card in cards if (card.name == wanted if wanted else card.model == model.kind)
    ] or cards
    suffix, text = fitting[0].sample or ("", "")
    path = Path.cwd() / f"sample{suffix}"
    if path.exists():
        raise DataError(path, "exists, and nothing is overwritten", f"Name it: snugfit init {path.name}")
    reader = READERS[suffix]
    columns, rows, _, _ = reader(text.encode(), path.name, "init")
    return Source(Rows(path, columns, rows), Path.cwd(), sample=text)
