"""Discovery of techniques: one module, one technique."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.system.plugins import Importer
from snugfit.system.user_objects import is_python_path
from snugfit.techniques.plugins import TECHNIQUES, loaded

_FAMILIES = ("learning", "placement", "numerics")
_SUGGESTED = 4  # names in a hint
_LISTED = 20  # names that an error may list whole

_NEEDLESS = {"fusedlayernorm": "Leave it out: torch's nn.LayerNorm is one fused operator already."}
"""What is said of techniques of other tools that torch has by itself."""


class _Techniques(Mapping[str, type[Technique]]):
    """Techniques by name, which is that of their module too. Each is imported when it is asked for: a recipe names a few of a hundred."""

    def __init__(self) -> None:
        packages = [importlib.import_module(f"{__name__}.{family}") for family in _FAMILIES]
        modules = [
            (each.name, package) for package in packages for each in pkgutil.iter_modules(package.__path__)
        ]
        self._modules = {name: f"{package.__name__}.{name}" for name, package in sorted(modules)}

    def __getitem__(self, name: str) -> type[Technique]:
        path = self._modules[name]
        return next(
            value
            for value in vars(importlib.import_module(path)).values()
            if isinstance(value, type) and issubclass(value, Technique) and value.__module__ == path
        )

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@functools.cache
def discover() -> Mapping[str, type[Technique]]:
    """Return all techniques by name: the one `Technique` that each module of each family defines. Only those that are asked for are imported."""
    return _Techniques()


def of_class(name: str) -> type[Technique] | None:
    """Return the technique whose class has a name, None if there is none; other techniques are not imported where its module is called so too.

    >>> of_class("ClipNorm").card.name, of_class("Unheard")
    ('clip_norm', None)
    """
    known = discover()
    likely_first = sorted(known, key=lambda each: _plain(each) != name.lower())
    return next((known[each] for each in likely_first if known[each].__name__ == name), None)


def of_alias(alias: str) -> str | None:
    """Return the name of the technique that is called so, here or in other tools, whatever the case and the punctuation; None if there is none.

    >>> of_alias("gradient_checkpointing"), of_alias("LLM.int8()"), of_alias("AdamW"), of_alias("unheard")
    ('recompute', 'int8', 'adamw', None)
    """
    return _aliases().get(_plain(alias))


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return a hint for a name that is none of `names`: what is called so elsewhere, else what is called nearly so, else where they are listed.

    >>> suggestion("Sample Packing", ["packing", "ema"])
    "It is called 'packing' here."
    >>> suggestion("recompte", ["recompute", "ema"])
    "Did you mean 'recompute'?"
    >>> suggestion("gradient checkpoint", ["recompute", "gradient_cache"])
    "Did you mean 'recompute'?"
    >>> suggestion("offload", ["gradient_offload", "optimizer_offload", "ema"])
    "Did you mean 'gradient_offload' or 'optimizer_offload'?"
    >>> suggestion("zzz", ["packing", "ema"])
    'Known: ema, packing.'
    >>> suggestion("FusedLayerNorm", ["packing", "ema"])
    "Leave it out: torch's nn.LayerNorm is one fused operator already."
    """
    if needless := _NEEDLESS.get(_plain(name)):
        return needless
    names = list(names)
    known = of_alias(name)
    if known in names:
        return f"It is called '{known}' here."
    plain, called = _plain(name), {alias: each for alias, each in _aliases().items() if each in names}
    called |= {_plain(each): each for each in names}
    like = sorted({each for alias, each in called.items() if len(plain) > 2 and plain in alias})
    like = like or [called[alias] for alias in difflib.get_close_matches(plain, called, n=1)]
    if like:
        either = " or ".join(f"'{each}'" for each in like[:_SUGGESTED])
        return f"Did you mean {either}?"
    if len(names) > _LISTED:
        return "List techniques with `snugfit techniques`, other settings with `snugfit recipe`."
    return f"Known: {', '.join(sorted(names))}."


@functools.cache
def _aliases() -> Mapping[str, str]:
    """Return names by what they are called, plainly: a technique's own name goes before another's alias."""
    known = discover()
    aliases = {_plain(alias): name for name, each in known.items() for alias in each.card.aliases}
    return aliases | {_plain(name): name for name in known}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def find(name: str, setting: str = "techniques") -> type[Technique]:
    """Return a technique by name, or by the `package.module:Class` of one of the user's own that was imported before.

    Raises:
        SettingError: there is none; the nearest name is given.
    """
    known = discover()
    if is_python_path(name) and (own := loaded(name)) is not None:
        return own
    if name not in known:
        raise SettingError(setting, f"no technique '{name}'", suggestion(name, known))
    return known[name]


def find_any(name: str, folder: Path, others: Iterable[str] = ()) -> type[Technique]:
    """Return a technique of any origin, by its name, an alias or its path, that somebody has named on a command line, which is consent to import it.

    Args:
        folder: where the module of a `package.module:Class` is looked for first.
        others: names that were meant, perhaps, for a suggestion.
    Raises:
        SettingError: there is none, or it cannot be used.
    """
    known = discover()
    ours = name if name in known else of_alias(name)
    if ours is not None:
        return known[ours]
    own = Importer(folder=folder, allowed=True).load(TECHNIQUES, name, "techniques", known)
    if own is None:
        listed = TECHNIQUES.entry_points()
        raise SettingError(
            "techniques", f"there is no '{name}'", suggestion(name, [*known, *listed, *others])
        )
    return own[1]
