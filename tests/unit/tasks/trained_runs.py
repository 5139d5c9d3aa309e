"""What the laws of a task do with its runs: end one early, look at what one learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from snugfit.run.from_recipe import resume_run
from snugfit.run.trained_model import load


class AfterWindows:
    """A stop of a run, after so many of its windows."""

    def __init__(self, windows: int) -> None:
        self.windows = windows

    def __call__(self) -> str | None:
        self.windows -= 1
        return None if self.windows else "enough"


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of the model in a run's folder."""
    return load(run).model.state_dict()


def check_resume(whole: Any, stopped: Any, updates: int) -> None:
    """See that a run which was stopped after so many updates goes on to the weights of one that was not."""
    assert stopped.updates == updates
    check_weights(resume_run(stopped.run_dir).run_dir, weights(whole.run_dir))


def check_weights(run: Path, expected: Mapping[str, torch.Tensor]) -> None:
    """See that the model in a run's folder has these parameters and buffers."""
    after = weights(run)
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in expected)


def check_parts(whole: Any, parts: Any) -> None:
    """See that a run in finer micro-batches has learned what another has, but for rounding."""
    expected, given = weights(whole.run_dir), weights(parts.run_dir)
    assert given.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(given[name], expected[name], atol=1e-5, rtol=1e-4)
