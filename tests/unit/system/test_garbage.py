from __future__ import annotations

import gc

import pytest

from snugfit.system.garbage import done_loading, loading

USUAL = (700, 10, 10)


def test_garbage_is_looked_for_among_what_is_new_until_all_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    of_tests, frozen = gc.get_threshold(), []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.get_threshold()))
    try:
        gc.set_threshold(*USUAL)
        with loading():
            assert gc.get_threshold()[2] > 10 * USUAL[2] and not frozen
            done_loading()
            assert gc.get_threshold() == USUAL and len(frozen) == 1
        done_loading()  # as in a process whose command does not begin so
        assert gc.get_threshold() == USUAL and len(frozen) == 1
        with pytest.raises(ValueError, match="bad"), loading():
            raise ValueError("bad")
        assert gc.get_threshold() == USUAL
    finally:
        gc.set_threshold(*of_tests)
