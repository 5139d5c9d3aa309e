"""Scripts are watched within the process of the tests, whose own modules are none of a script's."""

from __future__ import annotations

import sys

import pytest

from snugfit.doctor.observe import own_source
from snugfit.doctor.observe.watchers.watch_log import is_own


@pytest.fixture(autouse=True)
def _tests_are_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_script(file: str) -> bool:
        tests = (module for name, module in list(sys.modules.items()) if name.startswith("tests."))
        return is_own(file) and all(getattr(module, "__file__", None) != file for module in tests)

    monkeypatch.setattr(own_source, "is_own", of_a_script)
