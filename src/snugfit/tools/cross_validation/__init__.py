"""Cross-validation: folds, their runs, and the scores of rows that no run was trained on."""

from __future__ import annotations

from snugfit.tools.cross_validation.door import cross_validate, resume

__all__ = ["cross_validate", "resume"]
