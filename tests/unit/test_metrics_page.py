"""The page of metrics, executed as it is written: its functions, its call, its recipes, and a row for every metric."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.core.job import Evaluate
from snugfit.errors import MissingExtra, SettingError
from snugfit.recipe import load_recipe
from snugfit.step.metrics.metric import METRICS, OF_TASKS

PAGE = (Path(sf.__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's Python leaves behind, run in order on a model and data of its reader's, in a folder of its own."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 4)
    rows = list(zip(inputs, inputs[:, :3].argmax(dim=1), strict=True))
    space: dict[str, Any] = {"model": nn.Linear(4, 3), "data": rows}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("page"))
        # a new database of MLflow takes longer than all else here
        patched.setattr(sf, "train", functools.partial(sf.train, track=False))
        for block in blocks("python"):
            exec(compile(block, "docs/metrics.md", "exec"), space)
        yield space


def test_its_functions_are_what_it_says(names: dict[str, Any]) -> None:
    logits, labels = torch.eye(4)[[0, 1, 2, 3]], torch.tensor([0, 1, 2, 0])
    values = names["top_3"](SimpleNamespace(logits=logits), {"labels": labels})
    assert values.shape == (4,) and values[:3].tolist() == [1, 1, 1]
    assert names["kappa"](logits[:3], labels[:3]) == pytest.approx(1.0)
    assert [names["each_fifth"]([{}] * count) for count in (4, 5)] == [False, True]


@pytest.mark.usefixtures("names")
def test_its_recipes_are_read() -> None:
    top = "name: a\ntask: tabular-classification\nmodel: mlp\ndata: {train: rows.csv, validation: 0.1, label: y}\n"
    of_torchmetrics, own, models = blocks("yaml")
    Path("zero.yaml").write_text(top + of_torchmetrics)
    if find_spec("torchmetrics") is None:
        with pytest.raises(MissingExtra, match=r"snugfit\[torchmetrics\]"):
            load_recipe("zero.yaml")
    else:
        assert load_recipe("zero.yaml").evaluate.metrics[1] == "torchmetrics.CohenKappa"
    Path("first.yaml").write_text(top + own)
    assert load_recipe("first.yaml").evaluate.metrics == ("accuracy", "my_metrics:kappa")
    head = re.search(r"```python\n(import sklearn.*?)```", PAGE, re.DOTALL)
    assert head is not None
    Path("my_metrics.py").write_text(head[1] + blocks("python")[-1])
    Path("second.yaml").write_text(
        top + models.replace("evaluate:", "evaluate:\n  metrics: my_metrics:kappa")
    )
    evaluate: Evaluate = load_recipe("second.yaml").evaluate
    assert (evaluate.every, evaluate.keep_models, evaluate.keep_when) == (500, 3, "my_metrics:each_fifth")


def test_every_metric_has_a_row_with_its_direction() -> None:
    from snugfit.kit.metric_directions import name_and_direction

    rows = [line for line in PAGE.splitlines() if re.fullmatch(r"\| `.* (high|low|neither) \|", line)]
    page = {
        name: row.split("|")[-2].strip() for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }

    def direction(name: str) -> str:
        try:
            return "high" if name_and_direction("evaluate.best", name)[1] else "low"
        except SettingError:
            return "neither"

    assert page == {name: direction(name) for name in ("perplexity", *METRICS, *OF_TASKS)}
