"""Techniques of the user's own: classes named as `package.module:Class`, and entry points of installed packages.

Both are code that somebody else has written. The list of entry points is read from the metadata of packages, which imports
nothing, and only for a name that is no technique of Snugfit's; a class is imported with the consent of whoever reads the file that names it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.system import code_consent
from snugfit.system.user_objects import is_python_path, load_object

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

GROUP = "snugfit.techniques"
"""The group of entry points that packages list their techniques under."""

_EXAMPLE = "Derive it from snugfit.Technique, as `snugfit new technique NAME` writes it."


def entry_points() -> dict[str, list[EntryPoint]]:
    """Return the techniques that installed packages list, by name; two packages may list the same name."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in sorted(installed_entry_points(group=GROUP), key=distribution):
        entries.setdefault(entry.name, []).append(entry)
    return dict(sorted(entries.items()))


def distribution(entry: EntryPoint) -> str:
    """Return the package that lists an entry point, with its version."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def import_path(entry: EntryPoint) -> str:
    """Return what an entry point names as `package.module:Class`; extras behind it are left out."""
    return f"{entry.module}:{entry.attr}" if entry.attr else entry.module


def only_entry_point(name: str, setting: str) -> EntryPoint | None:
    """Return the entry point of a name that Snugfit has no technique of; None where no package lists it.

    Raises:
        SettingError: two packages list it.
    """
    entries = entry_points().get(name, [])
    if len(entries) > 1:
        listed = " and ".join(f"{import_path(entry)} of {distribution(entry)}" for entry in entries)
        raise SettingError(
            setting,
            f"got '{name}', which {len(entries)} packages list: {listed}",
            "Write the path of the one you mean, or uninstall the other.",
        )
    return entries[0] if entries else None


def loaded(path: str) -> type[Technique] | None:
    """Return the technique that `package.module:Class` names if it was imported before in this process."""
    from snugfit.core.technique import Technique

    module, _, name = path.partition(":")
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and issubclass(value, Technique) else None


@dataclass(frozen=True)
class Importer:
    """The import of the techniques that a file names, with the consent of its reader.

    Args:
        origin: the file, for messages.
        folder: where modules are looked for first.
        allowed: whether the reader consents to all that the file names.
        code: what else the file names, so that a refusal lists it together.
    """

    origin: str = "techniques"
    folder: Path | None = None
    allowed: bool = False
    code: Mapping[str, str] = field(default_factory=dict)

    def technique(self, name: str, setting: str, ours: Collection[str]) -> type[Technique] | None:
        """Import the technique that a path or an entry point's name stands for; None where it is neither.

        Args:
            ours: names of Snugfit's own techniques.
        Raises:
            CodeRefused: the reader has not consented.
            SettingError: it cannot be imported, or is no technique; two packages list the name.
        """
        if is_python_path(name):
            self._require(setting, name)
            return check_technique(
                load_object(name, setting=setting, folder=self.folder), name, setting, ours
            )
        entry = only_entry_point(name, setting)
        if entry is None:
            return None
        self._require(setting, import_path(entry))
        return load_entry_point(entry, setting, ours)

    def _require(self, setting: str, path: str) -> None:
        named = self.code if path in self.code.values() else {**self.code, setting: path}
        code_consent.require(named, self.origin, folder=self.folder, allowed=self.allowed)


def load_entry_point(entry: EntryPoint, setting: str, ours: Collection[str]) -> type[Technique]:
    """Import the technique that a package lists.

    Raises:
        SettingError: names the package: it cannot be imported, is no technique, or its card has another name.
    """
    by = f"the entry point '{entry.name}' of {distribution(entry)}"
    if entry.name in ours:
        raise SettingError(
            setting,
            f"{by} has the name of a technique of Snugfit's, which it cannot replace",
            f"Name its class: {import_path(entry)}, under another name on its card.",
        )
    path = import_path(entry)
    try:
        technique = check_technique(load_object(path, setting=setting), path, setting, ours)
    except SettingError as error:
        raise SettingError(
            setting,
            f"{by} cannot be used: {error.problem}. {error.remedy}",
            "Upgrade or uninstall that package, or remove the technique.",
        ) from error
    if technique.card.name != entry.name:
        raise SettingError(
            setting,
            f"{by} is a technique whose card is named '{technique.card.name}'",
            "Give both one name in that package.",
        )
    return technique


def check_technique(value: Any, path: str, setting: str, ours: Collection[str]) -> type[Technique]:
    """Return `value` if it is a technique that a recipe can make.

    Args:
        path: what it was imported as.
        ours: names of Snugfit's own techniques.
    Raises:
        SettingError: it is not: says what is missing.
    """
    from snugfit.core.technique import Card, Technique

    if not isinstance(value, type):
        kind = f"a {type(value).__name__}"
        raise SettingError(
            setting, f"got '{path}', which is {kind}, expected the class of a technique", _EXAMPLE
        )
    if not issubclass(value, Technique):
        raise SettingError(setting, f"got '{path}', a class that is no Technique", _EXAMPLE)
    if not dataclasses.is_dataclass(value):
        raise SettingError(
            setting,
            f"got '{path}', which is no dataclass, so that its settings are not known",
            "Put @dataclass(frozen=True) above it.",
        )
    if not value.__dataclass_params__.frozen:
        raise SettingError(
            setting,
            f"got '{path}', a dataclass that may change during a run",
            "Put @dataclass(frozen=True) above it.",
        )
    card = getattr(value, "card", None)
    if not isinstance(card, Card):
        description = "no card" if card is None else f"a card that is {card!r}"
        raise SettingError(
            setting,
            f"'{path}' has {description}, expected `card: ClassVar[Card] = Card(name=…, summary=…, …)`",
            "Add it to the class.",
        )
    if not card.name.isidentifier():
        raise SettingError(
            setting,
            f"the card of '{path}' is named '{card.name}', expected a name such as 'my_technique'",
            "Rename it on the card.",
        )
    if card.name in ours:
        raise SettingError(
            setting,
            f"the card of '{path}' is named '{card.name}', as a technique of Snugfit's is",
            "Give it another name on the card.",
        )
    return value


def example_of(technique: type[Technique]) -> Technique:
    """Return a technique with its example settings.

    Raises:
        SettingError: it has none, or refuses them.
    """
    name = technique.card.name
    try:
        made = technique.example()
    except SettingError:
        raise
    except Exception as error:  # of the user's own class
        raise SettingError(
            name,
            f"its example settings cannot be made ({type(error).__name__}: {error})",
            "Give every setting a default, or define `example()`, a class method that returns the technique with "
            "settings that matter on a tiny model.",
        ) from error
    if not isinstance(made, technique):
        raise SettingError(
            name, f"example() gave {made!r}, expected a {technique.__name__}", "Return one from it."
        )
    return made
