"""A soup: one model of the mean of several runs' weights, those that raise its score on held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.deliver.ensemble import bundles_of
from snugfit.deliver.predictor import BATCH_ROWS, Predictor, load_predictor
from snugfit.errors import ModelError, SettingError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.metric_directions import name_and_direction
from snugfit.models.bundle import DETERMINISTIC, read_meta, save_bundle
from snugfit.models.folders import PROCESSOR
from snugfit.step.evaluate import evaluate
from snugfit.system.json_text import parse_json
from snugfit.system.rounding import in_float64

_OF_A_RUN = {"format", "files", "metrics", "update", "weights", "numerics", DETERMINISTIC, "soup"}
"""Meta data in which models of one kind may differ."""


def make_soup(
    sources: Sequence[str | Path],
    data: str,
    output: Path,
    *,
    metric: str = "",
    all_of_them: bool = False,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Write the mean of several models' weights as a model, and say what it and each of them scores.

    The best of them begins; each other one, the better first, is kept in the mean if that scores no worse. Models that were trained
    from the same weights have such a mean; those from scratch have none, and the best one stays alone.

    Args:
        sources: folders of runs or of models, or addresses of registered ones.
        data: labelled rows to choose by, which no run was trained on.
        metric: to choose by; the task's first by default.
        all_of_them: have the mean of all, whatever it scores.
    Returns:
        The scores, the sources that are in the mean, and its score.
    Raises:
        ModelError: they are not of one kind, or have no mean.
        SettingError: there is one alone, or no such metric.
    Source: Wortsman et al. 2022, arXiv:2203.05482, algorithm 1 (greedy soup).
    """
    if len(sources) < 2:
        raise SettingError("sources", f"got {len(sources)}", "Name two models or more.")
    bundles = [bundle for source in sources for bundle in bundles_of(source, uri=uri)]
    predictors = [load_predictor(bundle, allow_code=allow_code) for bundle in bundles]
    check_alike(predictors)
    first = predictors[0]
    use = first.inference
    if use.read is None or use.loss is None:
        raise ModelError(
            first.source, "is of a task whose rows are in no file", "Take its modules in Python."
        )
    name, higher = name_and_direction("--metric", metric or next(iter(use.metrics), "loss"))
    rows = use.read(data, labelled=True, bad_rows=bad_rows)
    loader = Loader(rows.examples, Order(len(rows.examples), BATCH_ROWS, shuffle=False), rows.collate)

    def score(state: Mapping[str, Tensor]) -> float:
        first.model.load_state_dict(state)
        windows = loader.windows(0, loader.order.windows_per_pass)
        return evaluate(first.scored(), windows, {} if name == "loss" else {name: name})[name]

    states = [{key: value.clone() for key, value in each.model.state_dict().items()} for each in predictors]
    alone = [score(state) for state in states]
    order = sorted(range(len(states)), key=lambda place: -alone[place] if higher else alone[place])
    in_the_mean, best = [order[0]], alone[order[0]]
    for place in order[1:]:
        value = score(_mean([states[each] for each in (*in_the_mean, place)]))
        if all_of_them or (value >= best if higher else value <= best):
            in_the_mean.append(place)
            best = value
    first.model.load_state_dict(_mean([states[each] for each in in_the_mean]))
    source = bundles[0]
    processor = source / PROCESSOR
    settings = {PROCESSOR: parse_json(processor.read_text(encoding="utf-8"))} if processor.is_file() else {}
    sources_in = [str(bundles[place]) for place in in_the_mean]
    meta = {key: value for key, value in read_meta(source).items() if key not in _OF_A_RUN}
    meta |= {"numerics": first.meta.get("numerics", "fp32"), "metrics": {name: best}, "soup": sources_in}
    save_bundle(output, first.model, meta, first.tokenizer, settings=settings)
    return {
        "output": str(output),
        "metric": name,
        "score": best,
        "alone": {str(bundle): value for bundle, value in zip(bundles, alone, strict=True)},
        "models": sources_in,
    }


def _mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of floating tensors, taken in float64; others are those of the first."""
    first = states[0]
    return {
        key: torch.stack([in_float64(state[key]) for state in states]).mean(dim=0).to(value.dtype)
        if value.is_floating_point()
        else value
        for key, value in first.items()
    }


def check_alike(predictors: Sequence[Predictor]) -> None:
    """See that models have weights of which there is a mean.

    Raises:
        ModelError: they have not.
    """
    first, *others = predictors
    if has_batch_norm(first.model):
        raise ModelError(
            first.source,
            "has batch norm, whose statistics belong to its own weights and not to a mean",
            "Have them predict together: snugfit predict RUN DATA --with RUN",
        )
    if any(type(each) not in (Tensor, torch.nn.Parameter) for each in first.model.parameters()):
        raise ModelError(
            first.source, "has weights in a format of few bits, of which there is no mean", "Name whole ones."
        )
    for other in others:
        kinds = [
            {key: value for key, value in each.meta.items() if key not in _OF_A_RUN}
            for each in (first, other)
        ]
        different = sorted(key for key in {**kinds[0], **kinds[1]} if kinds[0].get(key) != kinds[1].get(key))
        shapes = [
            {key: value.shape for key, value in each.model.state_dict().items()} for each in (first, other)
        ]
        if different or shapes[0] != shapes[1]:
            raise ModelError(
                other.source,
                f"is of another kind than {first.source}: they differ in {', '.join(different) or 'their weights'}",
                "Name models that were trained on the same rows from the same weights.",
            )
