"""Rows or a script to begin with: those that are named, or the ones that lie in a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import READERS
from snugfit.data.files.file_kinds import (
    PICTURE_SUFFIXES,
    SOUND_SUFFIXES,
    is_hub_name,
    is_saved,
    is_shards,
    pictures_in,
)
from snugfit.data.files.shards import any_of, shard_patterns
from snugfit.errors import DataError
from snugfit.models.folders import CONFIG
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import discover
from snugfit.tasks.recognition import Rows, Script
from snugfit.tools.init.local_models import LocalModel, model_at, models_in, named_model
from snugfit.tools.init.request import Request
from snugfit.tools.init.surroundings import (
    Part,
    Surroundings,
    class_folders,
    held_out_of,
    no_task,
    nothing_here,
    part_of,
    read_picture_folder,
    read_rows,
    read_script,
    read_sound_folder,
    survey,
)

Tell = Callable[[str], None]

_SCRIPT = ".py"
_FEWEST_PICTURES = 8
"""To learn from without labels: fewer illustrate something else."""


@dataclass(frozen=True)
class Source:
    """Rows or a script, and where they are.

    Args:
        folder: where the recipe is written.
        faults: of rows that cannot be read.
        validation, test: files for that.
        further: files of the same folder with the same columns, whose rows are in `content` as well.
        left_out: files of the folder that hold other rows, or that cannot be read.
        sample: the text of rows of ours, where there are none; it is not written yet.
        name: of rows that are no file: a data set on the hub, or `package.module:function`.
    """

    content: Rows | Script
    folder: Path
    faults: tuple[Fault, ...] = ()
    validation: Path | None = None
    test: Path | None = None
    sample: str | None = None
    name: str | None = None
    further: tuple[Path, ...] = ()
    left_out: tuple[Path, ...] = ()

    @property
    def path(self) -> Path:
        return self.content.path

    @property
    def about(self) -> Path:
        """The file that it is about, or the folder where there are several."""
        return self.path.parent.resolve() if self.further else self.path


def find_model(source: str | None) -> LocalModel | None:
    """Return the model that the source names; None where it names none."""
    if source is None or _is_name(source):
        return None
    path = Path(source).expanduser()
    if path.name == CONFIG and path.is_file():
        path = path.parent
    if path.is_dir():
        return model_at(path, str(path), f"in {path}") if (path / CONFIG).is_file() else None
    is_path = source.endswith("/") or source.count("/") > 1
    if path.exists() or path.suffix.lower() in (*READERS, _SCRIPT) or is_path:
        return None
    return named_model(source)


def find_source(source: str | None, model: LocalModel | None, request: Request, tell: Tell) -> Source:
    """Return the rows or the script to begin with.

    Raises:
        DataError: there are none, or a column that is named is not among theirs.
    """
    path = Path.cwd() if source is None else Path(source).expanduser()
    if (of_rows := _named(source, path, tell)) is not None:
        return of_rows
    if model is not None:
        return _rows_for(model, path, source is not None, request, tell)
    if path.is_file() and path.suffix == _SCRIPT:
        return Source(read_script(path), path.parent)
    if path.is_file() and path.suffix.lower() not in READERS:
        read_rows(path)  # says what is wrong with it, or which files can be read
    if not path.is_dir() or is_saved(path):
        if not path.exists():
            read_rows(path)  # says so, with the nearest name
        return _rows_of(survey(path.parent), path, request, tell)
    here = survey(path)
    if here.tables:
        return _rows_of(here, None, request, tell)
    if files := _files_of(path, "pictures", tell) or _files_of(path, "sounds", tell):
        return files
    for each in here.scripts:
        script = read_script(each)
        if any(card.recognize(script, {}) for card in discover().values()):
            return Source(script, path)
    if not here.sounds and (alone := _unlabelled(path, tell)):
        return alone
    if here.scripts and not here.pictures:
        names = ", ".join(each.name for each in here.scripts[:4])
        raise DataError(
            path,
            f"holds {names}, and no script with a model and rows that can be imported without training",
            f"Keep your loop, and put a step into it: snugfit init --from {shlex.quote(os.path.relpath(here.scripts[0]))}",
        )
    here_models = [each for each in models_in(path) if each.folder != path]
    if here_models and not here.pictures and not here.sounds:
        return _sample(here_models[0], request)
    raise nothing_here(here)


def _rows_for(model: LocalModel, path: Path, named: bool, request: Request, tell: Tell) -> Source:
    """Return rows for a model: those in a folder that is named, or in this one; a sample where there are none.

    Raises:
        DataError: there are none of the kind that it sees or hears.
    """
    at = Path.cwd() if not named or not path.is_dir() or (path / CONFIG).is_file() else path
    if model.kind in ("pictures", "sounds"):
        if files := _files_of(at, model.kind, tell):
            return files
        if model.kind == "pictures" and (alone := _unlabelled(at, tell)):
            return alone
        raise nothing_here(survey(at))
    inside = survey(path) if path.is_dir() else None
    here = inside if inside is not None and inside.tables else survey(Path.cwd())
    if not here.tables:
        return _sample(model, request)
    return _rows_of(here, None, request, tell)


def _named(source: str | None, path: Path, tell: Tell) -> Source | None:
    """Return the rows of a source that is no single file and no folder of tables or pictures; None of another."""
    if source is not None and _is_name(source):
        tell(f"reading {source} …")
        rows, faults = read_rows(source)
        return Source(rows, Path.cwd(), faults, name=source)
    return _shards_of(path, tell) if is_shards(path) else None


def _is_name(source: str) -> bool:
    """Return whether a source of rows is no file: a data set on the hub, or a Python function."""
    return is_hub_name(source) or (is_python_path(source) and not Path(source).exists())


def _rows_of(here: Surroundings, path: Path | None, request: Request, tell: Tell) -> Source:
    """Return the rows of a file; of a folder, those of the first file that a task has a use for and of all that have its columns."""
    own = path is not None
    problem: DataError | None = None
    for each in [path] if path is not None else here.tables:
        tell(f"reading {each.name} …")
        try:
            rows, faults = read_rows(each)
        except DataError as error:
            problem = problem or error
            continue
        if own:
            request.check_columns(rows)
        data = request.data(rows)
        if any(card.recognize(rows, data) for card in discover().values()):
            folder = Path.cwd() if own else here.folder
            validation, test = (
                _alike(held_out_of(each, here.held_out, part), rows) for part in ("validation", "test")
            )
            source = Source(rows, folder, faults, validation, test)
            return source if own else _with_alike(source, rows, here.tables, tell)
        problem = problem or no_task(rows, request)
    raise problem or nothing_here(here)


def _with_alike(first: Source, content: Rows, tables: Sequence[Path], tell: Tell) -> Source:
    """Return a file's rows and those of the other files of its folder that have its form and its columns."""
    rows, faults = [*content.rows], [*first.faults]
    further: list[Path] = []
    left_out: list[Path] = []
    for each in sorted(tables):
        if each in (first.path, first.validation, first.test):
            continue
        if each.suffix.lower() != first.path.suffix.lower():
            left_out.append(each)
            continue
        tell(f"reading {each.name} …")
        try:
            other, of_other = read_rows(each)
        except DataError:
            left_out.append(each)
            continue
        if set(other.columns) == set(content.columns):
            rows += other.rows
            faults += of_other
            further.append(each)
        else:
            left_out.append(each)
    joined = replace(content, rows=rows) if further else content
    return replace(
        first, content=joined, faults=tuple(faults), further=tuple(further), left_out=tuple(left_out)
    )


def _shards_of(path: Path, tell: Tell) -> Source:
    """Return the rows of shards; of a folder, those to train on, and others by the parts that their names say."""
    patterns: dict[Part | None, list[Path]] = {}
    for name, pattern in shard_patterns(path).items() if path.is_dir() else ():
        patterns.setdefault(part_of(Path(f"{name}.tar"))[1], []).append(pattern)
    parts = {part: any_of(own) for part, own in patterns.items()}
    train = parts.get("training") or (parts.get(None) if len(parts) > 1 else None) or path
    tell(f"reading {train.name} …")
    rows, faults = read_rows(train)
    rows = replace(rows, path=path)  # a recipe is named by the folder, not by a pattern
    validation, test = (parts.get("validation"), parts.get("test")) if train != path else (None, None)
    name = os.path.relpath(train)
    name = os.path.abspath(train) if name.startswith("..") else name
    return Source(rows, Path.cwd(), faults, validation, test, name=name)


def _files_of(folder: Path, plural: str, tell: Tell) -> Source | None:
    """Return the pictures or the sounds of a folder by their classes; None where it has none in folders of classes."""
    of_sounds = plural == "sounds"
    folders = class_folders(folder, SOUND_SUFFIXES if of_sounds else PICTURE_SUFFIXES)
    if folders is None:
        return None
    tell(f"looking at the {plural} in {folders.train.name} …")
    rows = (read_sound_folder if of_sounds else read_picture_folder)(folders.train)
    # beside the files, not among them; where they are all there is, in their folder
    parted = folders.train.parent if folders.validation or folders.test else folders.train
    place = parted if parted.resolve() == Path.cwd() else parted.parent
    return Source(rows, place, (), folders.validation, folders.test)


def _unlabelled(folder: Path, tell: Tell) -> Source | None:
    """Return the pictures of a folder that are in no folders of classes; None where there are few."""
    pictures = pictures_in(folder)
    if len(pictures) < _FEWEST_PICTURES:
        return None
    tell(f"looking at the pictures in {folder.name or folder} …")
    rows = Rows(folder, ("image",), [{"image": str(each.relative_to(folder))} for each in pictures])
    return Source(rows, folder if folder.resolve() == Path.cwd() else folder.parent)


def _alike(paths: Sequence[Path], rows: Rows) -> Path | None:
    """Return the first file that has the columns of some rows; None where none has."""
    for path in paths:
        with suppress(DataError):
            if set(read_rows(path)[0].columns) >= set(rows.columns):
                return path
    return None


def _sample(model: LocalModel, request: Request) -> Source:
    """Return a few rows that show the form, for a model without rows."""
    cards = [card for card in discover().values() if card.sample is not None]
    wanted = request.given.get("task")
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
