from __future__ import annotations

from tests.doctor.script_sources import tests_are_no_script  # noqa: F401

collect_ignore_glob = ["*_hand/*"]
"""Scripts, of which some are called tests."""
