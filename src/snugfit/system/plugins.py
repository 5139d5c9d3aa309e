"""Plugins of users and of other packages: objects named as `package.module:NAME`, and entry points of installed packages.

Both are code that somebody else has written. The list of entry points is read from the metadata of packages, which imports nothing, and
only for a name that is none of Snugfit's; an object is imported with the consent of whoever reads the file that names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from snugfit.errors import SettingError
from snugfit.system import code_consent
from snugfit.system.user_objects import is_python_path, load_object

Plugin = TypeVar("Plugin")


@dataclass(frozen=True)
class PluginKind(Generic[Plugin]):
    """A kind of plugin.

    Args:
        noun: what one is called in messages: technique.
        group: of the entry points that packages list them under.
        check: returns an object that was imported if it is one, given its path, the setting, and names of Snugfit's own; else it raises a
            SettingError that says what is missing.
        name_of: the name that one says of itself, which its entry point must have; None where it says none.
    """

    noun: str
    group: str
    check: Callable[[Any, str, str, Collection[str]], Plugin]
    name_of: Callable[[Plugin], str] | None = None

    def entry_points(self) -> dict[str, list[EntryPoint]]:
        """Return those that installed packages list, by name; two packages may list the same name."""
        entries: dict[str, list[EntryPoint]] = {}
        for entry in sorted(installed_entry_points(group=self.group), key=distribution):
            entries.setdefault(entry.name, []).append(entry)
        return dict(sorted(entries.items()))

    def listed(self, ours: Collection[str]) -> list[dict[str, str]]:
        """Return the same as plain values: name, package, path, and why a recipe cannot name one so, if it cannot.

        Args:
            ours: names of Snugfit's own.
        """

        def refusal(name: str, count: int) -> str:
            if name in ours:
                return f"it has the name of a {self.noun} of Snugfit's"
            return "another package lists the same name: use the path" if count > 1 else ""

        return [
            {
                "name": name,
                "package": distribution(entry),
                "path": import_path(entry),
                "refused": refusal(name, len(entries)),
            }
            for name, entries in self.entry_points().items()
            for entry in entries
        ]

    def loaded(self, path: str) -> Any:
        """Return the object that `package.module:NAME` names if its module was imported before in this process; else None."""
        module, _, name = path.partition(":")
        value: Any = sys.modules.get(module)
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    def only_entry_point(self, name: str, setting: str) -> EntryPoint | None:
        """Return the entry point of a name that is none of Snugfit's; None where no package lists it.

        Raises:
            SettingError: two packages list it.
        """
        entries = self.entry_points().get(name, [])
        if len(entries) > 1:
            listed = " and ".join(f"{import_path(entry)} of {distribution(entry)}" for entry in entries)
            raise SettingError(
                setting,
                f"got '{name}', which {len(entries)} packages list: {listed}",
                "Write the path of the one you mean, or uninstall the other.",
            )
        return entries[0] if entries else None

    def load_entry_point(self, entry: EntryPoint, setting: str, ours: Collection[str]) -> Plugin:
        """Import what a package lists.

        Raises:
            SettingError: names the package: it cannot be imported, is none of this kind, or says another name of itself.
        """
        by = f"the entry point '{entry.name}' of {distribution(entry)}"
        path = import_path(entry)
        if entry.name in ours:
            raise SettingError(
                setting,
                f"{by} has the name of a {self.noun} of Snugfit's, which it cannot replace",
                f"Name its path, {path}, with another name on its card.",
            )
        try:
            plugin = self.check(load_object(path, setting=setting), path, setting, ours)
        except SettingError as error:
            raise SettingError(
                setting,
                f"{by} cannot be used: {error.problem}. {error.remedy}",
                f"Upgrade or uninstall that package, or remove the {self.noun}.",
            ) from error
        if self.name_of is not None and self.name_of(plugin) != entry.name:
            raise SettingError(
                setting,
                f"{by} is a {self.noun} whose card is named '{self.name_of(plugin)}'",
                "Give both one name in that package.",
            )
        return plugin


def distribution(entry: EntryPoint) -> str:
    """Return the package that lists an entry point, with its version."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def import_path(entry: EntryPoint) -> str:
    """Return what an entry point names as `package.module:NAME`; extras behind it are left out."""
    return f"{entry.module}:{entry.attr}" if entry.attr else entry.module


@dataclass(frozen=True)
class Importer:
    """The import of the plugins that a file names, with the consent of its reader.

    Args:
        origin: the file, for messages.
        folder: where modules are looked for first.
        allowed: whether the reader consents to all that the file names.
        code: what else the file names, so that a refusal lists it together.
    """

    origin: str = "the command"
    folder: Path | None = None
    allowed: bool = False
    code: Mapping[str, str] = field(default_factory=dict)

    def load(
        self, kind: PluginKind[Plugin], name: str, setting: str, ours: Collection[str]
    ) -> tuple[str, Plugin] | None:
        """Import what a path or an entry point's name stands for, and return it with its path; None where it is neither.

        Args:
            ours: names of Snugfit's own.
        Raises:
            CodeRefused: the reader has not consented.
            SettingError: it cannot be imported, or is none of this kind; two packages list the name.
        """
        path = self.path(kind, name, setting)
        if path is None:
            return None
        if is_python_path(name):
            value = load_object(name, setting=setting, folder=self.folder)
            return path, kind.check(value, name, setting, ours)
        entry = kind.only_entry_point(name, setting)
        assert entry is not None
        return path, kind.load_entry_point(entry, setting, ours)

    def path(self, kind: PluginKind[Plugin], name: str, setting: str) -> str | None:
        """Return the path that a name stands for, which may be imported from now on; None where it stands for none.

        Raises:
            CodeRefused: the reader has not consented.
            SettingError: two packages list the name.
        """
        path = name
        if not is_python_path(name):
            entry = kind.only_entry_point(name, setting)
            if entry is None:
                return None
            path = import_path(entry)
        named = self.code if path in self.code.values() else {**self.code, setting: path}
        code_consent.require(named, self.origin, folder=self.folder, allowed=self.allowed)
        return path
