"""The log of an observed script: whatever is noted is read again."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import snugfit.doctor.observe as observe
from snugfit.doctor.observe.log import _EVENTS
from snugfit.doctor.observe.script_events import Event


def test_every_kind_of_event_can_be_read_again() -> None:
    modules = [import_module(f"{observe.__name__}.{each.name}") for each in iter_modules(observe.__path__)]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    known = {kind for module in _EVENTS for kind in vars(module).values() if isinstance(kind, type)}
    assert len(kinds) > 20 and kinds <= known
