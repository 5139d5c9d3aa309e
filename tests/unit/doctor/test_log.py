"""The log of an observed script: whatever is noted is read again, and of which files it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import snugfit
import snugfit.doctor.observe as observe
from snugfit.doctor.observe.events.log import _EVENTS
from snugfit.doctor.observe.events.script_events import Event
from snugfit.doctor.observe.recording.script_frames import is_own


def test_every_kind_of_event_can_be_read_again() -> None:
    modules = [import_module(each.name) for each in walk_packages(observe.__path__, f"{observe.__name__}.")]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    known = {kind for module in _EVENTS for kind in vars(module).values() if isinstance(kind, type)}
    assert len(kinds) > 20 and kinds <= known


def test_no_file_of_snugfit_is_a_scripts_own_where_it_runs_from_its_sources() -> None:
    """As in a checkout, which lies in no folder of libraries."""
    assert snugfit.__file__ is not None
    root = Path(snugfit.__file__).parent
    assert [path for path in sorted(root.rglob("*.py")) if is_own(str(path))] == []
    assert is_own(__file__)
