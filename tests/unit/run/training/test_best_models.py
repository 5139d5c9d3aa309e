"""The models of the best evaluations, and those that a function chooses: which are kept, what is in them, and what the disk does to it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.models import bundle
from snugfit.models.bundle import load_bundle
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.learning.swa import SWA
from tests.unit.run.training.runs import events, finish, make_training, points, resumed, small_model, stop_at
from tests.unit.run.training.test_full_disk import messages

HELD_OUT = points(5, seed=1)
EVALUATIONS = 9


def wobble(outputs: Tensor, _data: Any) -> Tensor:
    """A metric that goes up and down, by the weights alone."""
    return (300 * outputs.double()).sin().mean(dim=1)


def training(folder: Path, **settings: Any) -> Training:
    """A run of nine evaluations, one after each update."""
    given: dict[str, Any] = {
        "keep_models": 3,
        "best": "max:wobble",
        "metrics": {"wobble": wobble},
        **settings,
    }
    return make_training(
        folder,
        model=small_model(dropout=0.0),
        validation=HELD_OUT,
        epochs=3.0,
        evaluate_every=1,
        **given,
    )


def scores(run: Training) -> dict[str, float]:
    """The metric of each evaluation, by the name of its model."""
    return {f"update-{event['update']:08}": event["metrics"]["wobble"] for event in events(run, "evaluation")}


def models(run: Training) -> list[str]:
    assert run.folder is not None
    return sorted(path.name for path in run.folder.models.glob("*"))


def in_files(run: Training) -> dict[str, dict[str, Tensor]]:
    assert run.folder is not None
    return {name: load_file(run.folder.models / name / "model.safetensors") for name in models(run)}


def test_the_models_of_the_best_evaluations_are_kept_each_with_its_score(tmp_path: Path) -> None:
    run = training(tmp_path)
    finish(run)
    values = scores(run)
    assert len(values) == EVALUATIONS
    ranked = sorted(values, key=values.__getitem__, reverse=True)
    assert models(run) == sorted(ranked[:3]) and run.folder is not None
    assert list(values)[-1] != ranked[0]  # the best one was written before others were
    for name in models(run):
        model, meta, _ = load_bundle(run.folder.models / name, model=small_model(dropout=0.0))
        with torch.no_grad():
            value = wobble(model(torch.stack([inputs for inputs, _ in HELD_OUT])), None).mean()
        assert meta["metrics"]["wobble"] == values[name] == pytest.approx(float(value), abs=1e-4)
    best, link = (folder / "model.safetensors" for folder in (run.folder.best, run.folder.models / ranked[0]))
    assert best.samefile(link)  # on the disk once


def test_a_run_that_goes_on_keeps_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", checkpoint_every=2)
    finish(whole)
    for windows in (3, 7):  # a checkpoint is written at the stop
        stop_at(training(tmp_path / f"{windows}", checkpoint_every=2), windows)
        other = resumed(training(tmp_path / f"{windows}", checkpoint_every=2))
        finish(other)
        assert models(other) == models(whole)
        for name, weights in in_files(whole).items():
            torch.testing.assert_close(in_files(other)[name], weights, rtol=0, atol=0)


def test_a_model_of_an_update_that_the_run_has_gone_back_from_is_removed(tmp_path: Path) -> None:
    run = training(tmp_path)
    stop_at(run, 4)
    (tmp_path / "models" / "update-00000007").mkdir(parents=True)
    finish(resumed(training(tmp_path)))
    whole = training(tmp_path / "whole")
    finish(whole)
    assert models(run) == models(whole)


def test_a_function_chooses_others_beside_the_best(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def second_and_fifth(evaluations: list[dict[str, Any]]) -> bool:
        asked.append([each["update"] for each in evaluations])
        evaluations.clear()  # a copy
        return len(asked) in (2, 5)

    run = training(tmp_path / "chosen", keep_models=1, keep_when=second_and_fifth)
    finish(run)
    assert asked[-1] == [*range(1, EVALUATIONS + 1)]
    assert models(run) == ["update-00000002", "update-00000005"]
    asked.clear()
    both = training(tmp_path / "both", keep_models=2, keep_when=second_and_fifth)
    finish(both)
    values = scores(both)
    best = sorted(values, key=values.__getitem__)[-2:]
    assert models(both) == sorted({*best, "update-00000002", "update-00000005"})


def test_models_of_raw_weights_make_room_for_those_of_the_average(tmp_path: Path) -> None:
    run = training(
        tmp_path,
        techniques=(SGD(learning_rate=0.1), SWA(start=5, every=2, norm_windows=3)),
        best="min:loss",
        keep_models=9,
    )
    finish(run)
    kinds = {event["update"]: event["weights"] for event in events(run, "evaluation")}
    assert len({*kinds.values()}) == 2
    averaged = [f"update-{update:08}" for update, kind in kinds.items() if kind != "raw"]
    assert models(run) == averaged


def test_a_full_disk_costs_that_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = training(tmp_path / "whole")
    finish(whole)
    best = [event["best"] for event in events(whole, "evaluation")]
    lost = best.index(False) + 1  # written to models/ alone
    before, writes = bundle._save_plain, iter(range(1, 100))

    def write(*arguments: Any) -> None:
        if next(writes) == lost:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before(*arguments)

    monkeypatch.setattr(bundle, "_save_plain", write)
    run = training(tmp_path / "full", keep_models=EVALUATIONS)
    assert finish(run).status == "finished"
    assert len(models(run)) == EVALUATIONS - 1 and f"update-{lost:08}" not in models(run)
    (message,) = [text for text in messages(run) if "No space left" in text]
    assert "The training goes on without that model." in message


def test_where_the_disk_has_no_links_models_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links")

    monkeypatch.setattr("os.link", refuse)
    run = training(tmp_path)
    finish(run)
    assert len(models(run)) == 3 and run.folder is not None
    assert all((path / "snugfit.json").is_file() for path in run.folder.models.iterdir())


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"evaluate.keep_models: needs data to be measured on"):
        make_training(tmp_path / "a", keep_models=2)
    with pytest.raises(SettingError, match="output=None has none"):
        sf.train(small_model(), points(8), validation=HELD_OUT, keep_models=2, output=None, display=None)
    with pytest.raises(SettingError, match="evaluate.keep_when: returned None"):
        finish(training(tmp_path / "b", keep_when=lambda _: None))
    with pytest.raises(SettingError, match="evaluate.keep_when: failed: .*division"):
        finish(training(tmp_path / "c", keep_when=lambda _: 1 / 0))


def test_models_are_kept_by_a_run_from_python(tmp_path: Path) -> None:
    result = sf.train(
        small_model(),
        points(12),
        validation=HELD_OUT,
        epochs=4,
        global_batch=4,
        keep_models=2,
        output=tmp_path,
        track=False,
        display=None,
    )
    kept = sorted(Path(result.run_dir or "", "models").iterdir())
    assert len(kept) == 2
    update = json.loads((kept[-1] / "snugfit.json").read_text())["update"]
    assert kept[-1].name == f"update-{update:08}"
