"""The sources that are a script's, where it is watched within the process of the tests, whose own modules are none of it."""

from __future__ import annotations

import sys

import pytest

from snugfit.doctor.observe.recording import own_source
from snugfit.doctor.observe.recording.script_frames import is_own


@pytest.fixture(autouse=True)
def tests_are_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the modules of all tests that the process has, hundreds: each is read and searched at each optimizer otherwise."""
    tests = {
        getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("tests.")
    }
    monkeypatch.setattr(own_source, "is_own", lambda file: is_own(file) and file not in tests)
