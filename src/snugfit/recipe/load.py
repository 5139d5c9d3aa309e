"""The way from settings as they were written to a checked recipe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from snugfit.core.job import Train
from snugfit.core.other_names import our_name
from snugfit.core.settings import Section, Setting, shown
from snugfit.data.files.file_formats import READERS
from snugfit.data.named_sources import texts_in, with_files
from snugfit.errors import SettingError, nearest
from snugfit.recipe import declarations as m
from snugfit.recipe.checks import RowsHere, check_length, check_recipe, check_rows, placed
from snugfit.recipe.entries import parse_list, parse_numerics, parse_slot, technique_settings
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.presets import DEFAULT, Preset, find_preset, preset_names
from snugfit.recipe.strict_yaml import Keys, Places, read_yaml
from snugfit.recipe.write import written_code
from snugfit.system import code_consent
from snugfit.system.json_text import parse_json
from snugfit.system.plugins import Importer
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import discover, import_task, known
from snugfit.tasks.task_card import Card
from snugfit.tracking.named import NAMED, TRACKERS, no_tracker

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

Sections = TypeVar("Sections", bound=Section)

_LIMIT_BYTES = 2**20
REGISTERED = "models:/"

BeforeLibraries = Callable[[], object]
"""What is done when a recipe was looked at as far as that needs no heavy library."""

_DESCRIPTORS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_ONE_OR_MORE = ("text", "label_columns", "columns", "categories", "series", "known", "past")
"""Settings of `data` that take one name, or a list of names."""


def load_recipe(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    *,
    allow_code: bool = False,
    rows_here: RowsHere = "unseen",
    before_libraries: BeforeLibraries = lambda: None,
) -> m.Recipe:
    """Read a recipe's file, with overrides such as `train.epochs=3` on top.

    Args:
        allow_code: consent to run what it names as `package.module:function`; a file under the current directory needs none.
        rows_here: the files of rows that are looked at, before anything heavy is imported; `before_libraries` is called after that.
    Raises:
        CodeRefused: it names code, and is neither under the current directory nor allowed to.
        DataError: of rows that are looked at.
        SettingError: the file cannot be read, or a setting is unknown or impossible; names the line.
        PlanConflict: its techniques exclude each other.
    """
    path = Path(path)
    places = Places(str(path))
    tree = read_file(path, places)
    allowed = allow_code or code_consent.is_here(path)
    recipe = build(
        tree,
        overrides,
        places,
        folder=_folder_of(path),
        name=path.stem,
        allow_code=allowed,
        rows_here=rows_here,
        before_libraries=before_libraries,
    )
    code_consent.require(recipe.code, path, folder=recipe.folder, allowed=allowed)
    return recipe


def read_file(path: Path, places: Places) -> Mapping[str, Any]:
    """Return the settings as a recipe's file has them, before any is looked at; this loads no heavy library.

    Raises:
        SettingError: the file cannot be read, or is no YAML of settings; names the line.
    """
    tree = read_yaml(_read(path), str(path), places)
    if not isinstance(tree, Mapping):
        if isinstance(tree, (list, tuple)) and path.suffix.lower() in READERS:
            raise _rows_given(path)
        content = "nothing" if tree is None else shown(tree)
        raise SettingError(
            path,
            f"a recipe is a list of settings such as 'task: text-classification', found {content}",
            "Write it so.",
        )
    return tree


def build(
    tree: Mapping[str, Any],
    overrides: Iterable[str],
    places: Places,
    *,
    folder: Path,
    name: str,
    allow_code: bool = False,
    rows_here: RowsHere = "unseen",
    before_libraries: BeforeLibraries = lambda: None,
) -> m.Recipe:
    """Fill in the defaults and check everything.

    Args:
        folder: where the paths in `tree` are looked for; those of overrides are looked for in the current one.
        name: of the run, if the settings give none.
        allow_code: consent to import techniques of the user's own; those that were consented to before need none.
        rows_here, before_libraries: as `load_recipe` has them.
    """
    overrides = tuple(overrides)
    origin = places.of(()) or "the settings"
    tree = _with_task(_with_track(tree), Importer(origin, folder, allow_code), places)
    given = _absolute(tree, folder)
    named = apply_overrides(given, [text for text in overrides if text.startswith("preset=")], places)
    preset = _preset(named, places)
    given = apply_overrides({"techniques": preset.techniques, **given}, overrides, places)
    given = _with_task(_with_track(given), Importer(origin, folder, allow_code), places)
    given = _absolute(given, Path.cwd())
    # without `..`, as a copy of the recipe has it: consent is for a folder
    filled = _with_defaults({"name": name, "folder": os.path.abspath(folder), **given}, preset)
    recipe = read_section(m.Recipe, filled, places)
    check_rows(recipe, places, rows_here)  # before techniques are imported, and torch with them
    check_length(recipe, places)
    before_libraries()
    if recipe.model.startswith(REGISTERED):
        recipe = replace(recipe, model=_of_registry(recipe, places))
    importer = Importer(origin, recipe.folder, allow_code, written_code(recipe))
    recipe = replace(recipe, track=_with_trackers(recipe.track, importer, places))
    optimizer = parse_slot(recipe.optimizer, "optimizer", preset.optimizer, places, importer)
    schedule = recipe.schedule
    if "schedule" not in given and "schedule" in optimizer.card.seams:
        schedule = None  # the optimizer has one of its own
    if schedule is not None:
        schedule = parse_slot(schedule, "schedule", preset.schedule, places, importer)
    numerics = parse_numerics(recipe.plan.numerics, places, importer)
    recipe = replace(
        recipe,
        optimizer=optimizer,
        schedule=schedule,
        techniques=tuple(
            _with_paths(each, recipe.folder) for each in parse_list(recipe.techniques, places, importer)
        ),
        plan=replace(recipe.plan, numerics=numerics),
    )
    check_recipe(recipe, given, places)
    return recipe


def _of_registry(recipe: m.Recipe, places: Places) -> str:
    """Return the folder of the registered version that a recipe trains on: the alias may move, and the run goes on from what it began with.

    Raises:
        SettingError: the recipe begins with new weights, so that those of the version would be left out unseen; or the version is an
            adapter alone.
        TrackingError: the registry, the name, the alias or the version is not there.
    """
    from snugfit.deliver.model_registry import BUNDLE_FILE, lasting_folder
    from snugfit.models.adapter_bundle import ADAPTER, BASE

    if recipe.from_scratch:
        raise places.error(
            ("from_scratch",),
            f"is true, and the weights of {recipe.model} are to be trained on",
            "Set from_scratch: false.",
        )
    folder = lasting_folder(recipe.model, uri=recipe.track.uri, output=recipe.output)
    if base := parse_json((folder / BUNDLE_FILE).read_text(encoding="utf-8")).get(BASE):
        raise places.error(
            ("model",),
            f"{recipe.model} is an adapter alone, and its base is {base['model']}",
            f"Name the base, and go on with the adapter: model={base['model']}, and lora with start: {folder / ADAPTER}.",
        )
    return str(folder)


def _read(path: Path) -> str:
    if path.is_dir():
        raise SettingError(
            path,
            "is a folder, not a recipe",
            f"Name the YAML file; a run goes on with: snugfit resume {shlex.quote(str(path))}",
        )
    if path.suffix.lower() in READERS and path.suffix != ".json" and path.is_file():
        raise _rows_given(path)
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        names = [entry.name for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = nearest(path.name, names) if names else ""
        raise SettingError("recipe", f"there is no recipe {path}", hint or "Correct the path.") from error
    except OSError as error:
        raise SettingError(
            path, f"the recipe cannot be read: {error.strerror or error}", "Name a file that can be read."
        ) from error
    if len(content) > _LIMIT_BYTES:
        raise SettingError(
            path, f"is larger than {_LIMIT_BYTES // 2**20} MiB, so it is no recipe", "Use --data for data."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingError(
            f"{path}:{line}", "is not UTF-8 text, so it is no recipe", "Name a recipe, or save it as UTF-8."
        ) from error


def _rows_given(path: Path) -> SettingError:
    return SettingError(
        path,
        "is a file of rows, and a recipe is expected",
        f"Have a recipe written for it: snugfit init {shlex.quote(str(path))}. Or train without one: snugfit train --data {shlex.quote(str(path))}",
    )


def _folder_of(path: Path) -> Path:
    """Return the folder that a recipe's paths begin in: where the command is given for one that comes by a descriptor, such as a pipe."""
    folder = path.absolute().parent
    return Path.cwd() if folder in _DESCRIPTORS else folder


def _absolute(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings with relative paths made absolute; `output` is relative to where the command is given."""
    result = dict(tree)
    card = _card_of(tree)
    python = card is not None and card.own_code
    if isinstance(data := tree.get("data"), Mapping):
        files = {
            key: with_files(data[key], {text: _path(text, folder) for text in texts_in(data[key])})
            for key in ("train", "validation")
            if key in data
        }
        result["data"] = {**data, **({} if python else files)}
    if isinstance(model := tree.get("model"), str) and not python:
        prefix = "config:" if model.startswith("config:") else ""
        place = model.removeprefix(prefix)
        if place and (place.startswith((".", "~")) or (folder / place).is_dir()):
            result["model"] = f"{prefix}{_path(place, folder)}"
    if isinstance(tree.get("folder"), str):
        result["folder"] = _path(tree["folder"], folder)
    if isinstance(tree.get("output", "runs"), str):
        result["output"] = _path(tree.get("output", "runs"), Path.cwd())
    return result


def _with_task(tree: Mapping[str, Any], importer: Importer, places: Places) -> dict[str, Any]:
    """Return settings whose task, where it is none of Snugfit's, is imported and named by its path."""
    name, place = tree.get("task"), tree.get("folder")
    if not isinstance(name, str) or name in discover():
        return dict(tree)
    if isinstance(place, str):
        importer = replace(importer, folder=Path(_path(place, importer.folder or Path.cwd())))
    try:
        path = import_task(name, importer)
    except SettingError as error:
        raise error.about(places.name(("task",))) from error
    return {**tree, **({} if path is None else {"task": path})}


def _with_track(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings whose trackers, where they are a list of names, are the section that says the same."""
    names = tree.get("track")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return tree
    own = ("mlflow", *NAMED)
    others = tuple(name for name in names if name not in own)
    track = {**{name: name in names for name in own}, **({"others": others} if others else {})}
    return {**tree, "track": track}


def _with_trackers(track: m.Track, importer: Importer, places: Places) -> m.Track:
    """Return settings whose trackers of the user's own are named by their paths; a run imports them."""
    paths, setting = [], "track.others"
    try:
        for name in track.others:
            path = name if name in NAMED else importer.path(TRACKERS, name, setting)
            if path is None:
                raise no_tracker(name, setting, ("mlflow",))
            paths.append(path)
    except SettingError as error:
        raise error.about(places.name(("track", "others"))) from error
    return replace(track, others=tuple(paths))


def _card_of(tree: Mapping[str, Any]) -> Card | None:
    task = tree.get("task")
    return known(task) if isinstance(task, str) else None


def _with_paths(technique: Technique, folder: Path) -> Technique:
    """Return a technique whose settings that name files or folders are absolute."""
    paths = {name: getattr(technique, name) for name in technique.card.paths}
    absolute = {name: _path(value, folder) for name, value in paths.items() if isinstance(value, str)}
    return replace(technique, **absolute) if absolute else technique  # type: ignore[type-var]


def _path(text: str, folder: Path) -> str:
    if not text or is_python_path(text) or "://" in text:
        return text
    return os.path.abspath(folder / Path(text).expanduser())


def _preset(given: Mapping[str, Any], places: Places) -> Preset:
    name = given.get("preset", DEFAULT)
    if not isinstance(name, str):
        raise places.error(
            ("preset",),
            f"must be one of {', '.join(preset_names())}, found {shown(name)}",
            "Choose one of them.",
        )
    with placed(places, ("preset",)):
        return find_preset(name)


def _with_defaults(given: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    """Return the defaults that depend on other settings; impossible values are left for validation to find."""
    filled: dict[str, Any] = {"optimizer": preset.optimizer, "schedule": preset.schedule, **given}
    card = _card_of(filled)
    if card is not None:
        filled.setdefault("loss", card.loss)
    train = filled.get("train", {})
    if isinstance(train, Mapping) and train.get("updates") is not None and "epochs" not in train:
        filled["train"] = train = {**train, "epochs": None}
    if isinstance(train, Mapping) and train.get("batch_tokens") is not None and "global_batch" not in train:
        filled["train"] = train = {**train, "global_batch": None}
    evaluate = filled.get("evaluate", {})
    if isinstance(evaluate, Mapping):
        evaluate = {"metrics": () if card is None else card.metrics, **evaluate}
        metrics = evaluate["metrics"]
        if isinstance(metrics, str):
            evaluate["metrics"] = metrics = (metrics,)
        first = metrics[0] if isinstance(metrics, tuple) and metrics else "loss"
        evaluate.setdefault("best", first)
        if evaluate.get("batch") is None and isinstance(train, Mapping):
            evaluate["batch"] = train.get("global_batch") or Train().global_batch
        filled["evaluate"] = evaluate
    if isinstance(filled["folder"], str):
        filled["folder"] = Path(filled["folder"])
    data = filled.get("data")
    if isinstance(data, Mapping):
        single = {name: (data[name],) for name in _ONE_OR_MORE if isinstance(data.get(name), str)}
        filled["data"] = {**data, **single}
    return filled


def read_section(section: type[Sections], tree: Mapping[str, Any], places: Places) -> Sections:
    """Return a section with all sections in it, from settings as they were written.

    Raises:
        SettingError: settings are unknown, missing or impossible; a line for each.
    """
    problems: list[SettingError] = []
    instance = _section(section, tree, (), places, problems)
    if instance is None:
        raise SettingError.from_text("\n".join(dict.fromkeys(map(str, problems))))
    return instance


def _section(
    section: type[Sections], tree: Mapping[str, Any], keys: Keys, places: Places, problems: list[SettingError]
) -> Sections | None:
    declared = section.settings()
    unknown = [key for key in tree if key not in declared]
    values: dict[str, Any] = {}
    before = len(problems)
    for name, each in declared.items():
        here = (*keys, name)
        if name in tree:
            inner, value = each.section, tree[name]
            if inner is not None and isinstance(value, Mapping):
                values[name] = _section(inner, value, here, places, problems)
                continue
            try:
                values[name] = each.check(value)
            except ValueError:
                hint = f"{_nearest_name(each, value)}{_default(each)}".strip()
                problems.append(SettingError.must_be(places.name(here), each.takes, shown(value), hint))
        elif each.required and not any(_is_meant(name, key, declared) for key in unknown):
            problems.append(places.error(here, "is missing", f"Give it {each.takes} ({each.meaning})."))
    for key in unknown:
        problems.append(
            places.error((*keys, key), "there is no such setting", _suggestion((*keys, key), declared))
        )
    if len(problems) > before:
        return None
    try:
        return section(**values)
    except SettingError as error:
        problems.append(error.about(places.name(tuple(error.setting.split(".")))))
        return None


def _is_meant(name: str, key: str, declared: Mapping[str, Setting]) -> bool:
    """Return whether a setting that is missing is one that is misspelt: it is said once."""
    return nearest(key, declared) == f"Did you mean '{name}'?"


def _nearest_name(each: Setting, value: Any) -> str:
    """Return the nearest of several names, where one of them is taken."""
    if not each.names or not isinstance(value, str):
        return ""
    near = nearest(value, each.names)
    return f" {near}" if near.startswith("Did you mean") else ""


def _default(each: Setting) -> str:
    plain = each.required or each.default in ("", None) or isinstance(each.default, Section)
    return "" if plain else f" The default is {shown(each.default)}."


def _suggestion(keys: Keys, declared: Mapping[str, Setting]) -> str:
    """Return where a setting that is not known in its section may belong."""
    name = keys[-1]
    if (ours := our_name(".".join(keys))) is not None and ours.recipe:
        return f"Did you mean {ours.recipe}?"
    near = nearest(name, declared)
    if near.startswith("Did you mean"):
        return near
    whole = m.Recipe.settings()
    homes = [
        f"{key}.{name}"
        for key, each in whole.items()
        if each.section is not None and name in each.section.settings()
    ]
    if name in whole:
        homes.append(f"{name} at the top level")
    homes += technique_settings(name)
    return f"Did you mean {' or '.join(homes[:4])}?" if homes else near
