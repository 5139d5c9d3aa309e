"""What a resume compares: changes of what decides updates are refused by name, unless they are accepted."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import snugfit as sf
from snugfit.core.job import Plan
from snugfit.errors import RunFolderError, SettingError
from snugfit.run.checkpoint.save_and_restore import parts_of, take
from snugfit.run.identity.identity import check_identity, differences, model_identity
from tests.unit.run.training.runs import events, finish, make_training, points, resumed, small_model, stop_at


def _loss(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def _other_loss(outputs: Tensor, batch: Any) -> Tensor:
    return 2 * nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def _collate(rows: list[Any]) -> Any:
    return torch.utils.data.default_collate(rows)


def _never(evaluations: list[dict[str, Any]]) -> str | None:
    return None


def _model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_windows_of_another_size_that_are_accepted_are_said_to_move_the_run(tmp_path: Path) -> None:
    def train(batch: int, **more: Any) -> Any:
        return sf.train(
            small_model(),
            points(24),
            updates=6,
            global_batch=batch,
            output=tmp_path,
            display=None,
            track=False,
            **more,
        )

    first = train(4)
    again = train(8, resume=first.run_dir, accept_changes=["global_batch"])
    lines = (Path(again.run_dir) / "events.jsonl").read_text()
    assert "after 6 it is at epoch 2, where rows are read on. Start a new run" in lines
    assert "it is at epoch" not in lines.partition("the change is accepted")[0]


def _relabelled() -> list[Any]:
    rows = points(12)
    inputs, label = rows[-1]
    return [*rows[:-1], (inputs, (label + 1) % 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": _relabelled()}, "data: train row 11 was changed"),
        ({"train": points(16)}, "data: train rows 12 then, 16 now"),
        ({"validation": points(4, seed=3)}, "data: validation row 0 was changed"),
        ({"loss": _other_loss}, "loss: function '.*_loss' then, '.*_other_loss' now"),
        ({"loss": "cross_entropy"}, "loss: function '.*_loss' then, 'cross_entropy' now"),
        ({"collate": None}, "collate: is not given any more"),
        ({"stop_when": None}, "stop_when: is not given any more"),
        ({"model": small_model(dropout=0.5)}, r"model: modules \* .*Dropout\(p=0.1.* then, .*Dropout\(p=0.5"),
    ],
)
def test_another_run_is_refused_by_what_differs_and_goes_on_where_that_is_accepted(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    same: dict[str, Any] = {
        "loss": _loss,
        "collate": _collate,
        "validation": points(4, seed=2),
        "stop_when": _never,
        "updates": 6,
    }
    stop_at(make_training(tmp_path, **same), 2)
    with pytest.raises(RunFolderError, match=f"^resume: .*{message}") as refused:
        make_training(tmp_path, **{**same, **change}).restore()
    name = message.partition(":")[0]
    assert f"To go on with the change: accept_changes=['{name}']" in str(
        refused.value
    )  # no command has a recipe of it
    other = resumed(make_training(tmp_path, **{**same, **change}, accept_changes=[name]))
    assert finish(other).status == "finished"
    (note,) = events(other, "warning")
    assert note["message"].startswith(f"resume: the change is accepted. {name}: ")
    resumed(make_training(tmp_path, **{**same, **change}))  # whose checkpoints are its own from then on


def test_the_same_run_made_anew_is_resumed_without_a_word(tmp_path: Path) -> None:
    same: dict[str, Any] = {"loss": _loss, "collate": _collate, "validation": points(4, seed=2)}
    stop_at(make_training(tmp_path, **same), 2)
    again = resumed(make_training(tmp_path, **{**same, "validation": points(4, seed=2)}))
    assert finish(again).status == "finished"
    assert not events(again, "warning")


@pytest.mark.parametrize(("norm", "refused"), [(True, True), (False, False)])
def test_another_micro_batch_is_another_run_under_batch_norm_alone(
    tmp_path: Path, norm: bool, refused: bool
) -> None:
    def make(micro_batch: int | None) -> Any:
        return make_training(tmp_path, model=_model() if norm else small_model(), plan=Plan(micro_batch))

    stop_at(make(2), 2)
    if refused:
        with pytest.raises(RunFolderError, match="batch_norm: micro_batch 2 then, 'whole window' now"):
            make(None).restore()
        assert make(2).restore() is None
    else:
        resumed(make(None))


def test_a_whole_window_is_one_micro_batch_however_it_is_written(tmp_path: Path) -> None:
    stop_at(make_training(tmp_path, model=_model(), plan=Plan(4)), 2)
    resumed(make_training(tmp_path, model=_model(), plan=Plan(None)))


class _Drawn(Dataset[Any]):
    """Rows that are drawn: from the generators that a run seeds, or from one of its own."""

    def __init__(self, own: bool) -> None:
        self._generator = random.Random() if own else random  # type: ignore[assignment]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([self._generator.random(), float(index)]), index % 3


def test_drawn_rows_are_compared_where_a_run_seeds_the_draw_and_else_named_as_not_compared(
    tmp_path: Path,
) -> None:
    stop_at(make_training(tmp_path / "seeded", train=_Drawn(own=False)), 2)
    again = resumed(make_training(tmp_path / "seeded", train=_Drawn(own=False)))
    assert not events(again, "warning")
    stop_at(make_training(tmp_path / "own", train=_Drawn(own=True)), 2)
    again = resumed(make_training(tmp_path / "own", train=_Drawn(own=True)))
    (note,) = events(again, "warning")
    assert note["message"].startswith("resume: cannot be compared")
    assert "data: train row 0" in note["message"]


def test_looking_at_rows_moves_no_generator(tmp_path: Path) -> None:
    random.seed(3)
    torch.manual_seed(3)
    before = random.getstate(), torch.get_rng_state()
    make_training(tmp_path, train=_Drawn(own=False))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.slow
def test_a_worker_reads_the_rows_where_workers_read_the_data(tmp_path: Path) -> None:
    class Opened(_Drawn):
        opened = 0

        def __getitem__(self, index: int) -> Any:
            self.opened += 1
            return super().__getitem__(index)

    data = Opened(own=False)
    training = make_training(tmp_path, train=data, plan=Plan(num_workers=1))
    assert data.opened == 0  # in this process
    assert training.identity["data"] == make_training(tmp_path / "here", train=_Drawn(False)).identity["data"]


_OWN: Mapping[str, Any] = {
    "recipe": {"train": {"seed": 0}},
    "data": {"file": {"a.csv": "a" * 64}, "train": {"rows": 3}},
    "loss": {"function": "mse"},
}


def test_a_checkpoint_without_an_identity_is_resumed_and_said_to_be_not_compared() -> None:
    assert check_identity({}, _OWN) == [
        "resume: the checkpoint does not say, so it is not compared: recipe, data, loss."
    ]


def test_an_older_checkpoints_settings_and_files_are_compared() -> None:
    sha256 = "4e2b2fbbb0d4e6a2a5dd1d9c7e1a23d9c5d9c3c3c9cf7d6b5f9f2a7c2a2b0e11"
    old: dict[str, Any] = {"data": {"a.csv": "a" * 64}}
    assert check_identity(old, _OWN) == [
        "resume: the checkpoint does not say, so it is not compared: recipe, loss."
    ]
    with pytest.raises(RunFolderError, match=r"data: a\.csv was changed"):
        check_identity({"data": {"a.csv": "b" * 64}}, _OWN)
    with pytest.raises(RunFolderError, match="recipe: was changed"):
        check_identity({"recipe": sha256}, _OWN)
    assert check_identity({"data": {}}, _OWN) == [
        "resume: the checkpoint does not say, so it is not compared: recipe, loss, data."
    ]


def test_windows_of_a_checkpoint_that_says_nothing_of_them_are_of_one_size() -> None:
    own = {**_OWN, "window": {"start_batch": 4}}
    with pytest.raises(RunFolderError, match="window: start_batch is new"):
        check_identity(_OWN, own)
    assert check_identity(_OWN, own, ["window"]) == [
        "resume: the change is accepted. window: start_batch is new."
    ]
    assert check_identity(_OWN, {**_OWN, "window": {}}) == check_identity(_OWN, _OWN) == []


def test_a_setting_that_is_not_given_is_compared_like_any_other() -> None:
    without: dict[str, Any] = {"recipe": {"early_stopping": None}, "optimizer": None}
    assert check_identity(without, without) == []
    with pytest.raises(RunFolderError, match="recipe: early_stopping None then, 3 now"):
        check_identity(without, {**without, "recipe": {"early_stopping": 3}})


def test_a_second_change_is_refused_with_what_is_accepted_already() -> None:
    now = {**_OWN, "data": {"train": {"rows": 4}}, "loss": {"function": "mae"}}
    with pytest.raises(RunFolderError, match=r"accept_changes=\['data', 'loss'\]"):
        check_identity(_OWN, now, ["data"])
    assert len(check_identity(_OWN, now, ["data", "loss"])) == 2


def test_a_default_loss_of_before_is_told_by_its_name() -> None:
    then, now = ({**_OWN, "loss": {"function": name}} for name in ("cross_entropy", "causal_lm"))
    with pytest.raises(RunFolderError, match=r"Put it back \(loss: cross_entropy\), or start a new run"):
        check_identity(then, now)


def test_a_name_that_nothing_has_cannot_be_accepted() -> None:
    with pytest.raises(SettingError, match="accept_changes: 'los' .* Did you mean 'loss'"):
        check_identity(_OWN, _OWN, ["los"])


def test_rows_that_one_of_two_had_no_time_to_read_are_no_change() -> None:
    then = {"train": {"rows": 3, "row": {"0": "a" * 64, "2": "b" * 64}}}
    assert differences(then, {"train": {"rows": 3, "row": {"0": "a" * 64}}}) == []
    assert differences(then, {"train": {"rows": 3, "row": {"0": "c" * 64}}}) == ["train row 0 was changed"]


_BY_TEXT: Mapping[str, Any] = {
    "loss": {"function": "mine.loss", "mine.loss": "a" * 64, "mine.GAMMA": 2.0},
    "model": {"class": "mine.Net", "config": {}, "code": {"mine.Net": "b" * 64}, "modules": {"": "Net()"}},
}
"""As identities were before version 2, which said of no global in small letters."""


def test_a_checkpoint_that_notes_code_by_its_text_is_resumed_and_says_so() -> None:
    own = {
        "loss": {"function": "mine.loss", "mine.loss": "c" * 64, "mine.GAMMA": 2.0, "mine.scale": 1.0},
        "model": {**_BY_TEXT["model"], "code": {"mine.Net": "d" * 64, "mine.width": 3}},
        "collate": None,
        "metrics.own": {"function": "accuracy"},
    }
    saved = {**_BY_TEXT, "collate": None, "metrics.own": {"function": "accuracy"}}
    (note,) = check_identity(saved, own, version=1)
    assert "edits of code are not compared: loss, model." in note
    for change, message in (
        ({"loss": {**own["loss"], "mine.GAMMA": 3.0}}, "loss: mine.GAMMA 2.0 then, 3.0 now"),
        ({"loss": {"function": "mine.other"}}, "loss: function 'mine.loss' then"),
        ({"model": {**own["model"], "class": "mine.Other"}}, "model: class"),
    ):
        with pytest.raises(RunFolderError, match=message):
            check_identity(saved, {**own, **change}, version=1)
    with pytest.raises(RunFolderError, match=r"loss: mine\.loss was changed"):
        check_identity(saved, own)


def test_a_run_whose_checkpoint_says_no_version_is_resumed_though_its_code_has_other_digests(
    tmp_path: Path,
) -> None:
    training = make_training(tmp_path, loss=_loss)
    parts = parts_of(training)
    run: Any = parts["run"]
    identity = {**run["identity"], "loss": dict.fromkeys(run["identity"]["loss"], "a" * 64)}
    identity["loss"]["function"] = run["identity"]["loss"]["function"]
    altered = {**parts, "run": {**run, "identity": identity}}
    with pytest.raises(RunFolderError, match="loss: .*_loss was changed"):
        take(training, altered)
    del altered["run"]["identity_version"]
    assert any("noted code in another way" in note for note in take(training, altered))


def test_an_empty_part_is_another_than_none_and_nan_is_the_same_as_nan() -> None:
    assert differences({"labels": {}}, {"labels": None}) == ["labels {} then, None now"]
    assert differences({"data": {"label": "x"}}, {"data": {"label": "x", "classes": None}}) == []
    assert differences({"data": {"classes": None}}, {"data": {"classes": ["a"]}}) != []
    assert differences({"labels": {}}, {"labels": {"0": "a"}}) == ["labels 0 is new"]
    assert differences({"labels": {}}, {}) == ["labels is gone"]
    assert differences({"ignored": math.nan}, {"ignored": math.nan}) == []


class _Features(nn.Module):
    """Random features, which no checkpoint holds where they are not persistent."""

    def __init__(self, seed: int, size: int = 4, persistent: bool = False) -> None:
        super().__init__()
        drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("drawn", drawn, persistent=persistent)


def test_buffers_that_no_checkpoint_holds_are_compared_and_those_that_it_holds_are_not() -> None:
    first = model_identity(nn.Sequential(_Features(0)))
    assert differences(first, model_identity(nn.Sequential(_Features(0)))) == []
    (change,) = differences(first, model_identity(nn.Sequential(_Features(1))))
    assert change.startswith("unsaved buffer 0.drawn (4,) '")
    assert differences(first, model_identity(nn.Sequential(_Features(1, size=5)))) == []  # one that grows
    saved = [model_identity(_Features(seed, persistent=True)) for seed in (0, 1)]
    assert differences(*saved) == []


@pytest.mark.parametrize("frozen", [True, False])
def test_a_resume_takes_all_weights_from_the_checkpoint_frozen_ones_too(tmp_path: Path, frozen: bool) -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        made[0].requires_grad_(not frozen)
        return made

    stop_at(begun := make_training(tmp_path, model=model(0)), 2)
    again = make_training(tmp_path, model=model(1))
    assert not torch.equal(again.step.model[0].weight, begun.step.model[0].weight)  # type: ignore[index, arg-type]
    again.restore()
    own = again.step.model.state_dict()
    assert all(torch.equal(own[name], each) for name, each in begun.step.model.state_dict().items())


class _Configured(nn.Module):
    """A model with a configuration as transformers has it."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(to_dict=lambda: values)


def test_what_transformers_sets_in_a_configuration_by_itself_is_no_change() -> None:
    unset = model_identity(_Configured(problem_type=None, architectures=None, dtype=None, hidden_act=None))
    one = model_identity(
        _Configured(problem_type="regression", architectures=["A"], dtype="float32", hidden_act=None)
    )
    other = model_identity(_Configured(problem_type="multi_label_classification", hidden_act="gelu"))
    assert differences(unset, one) == differences(one, unset) == []
    assert differences(unset, other) == ["config hidden_act None then, 'gelu' now"]
    assert "config problem_type 'regression' then, 'multi_label_classification' now" in differences(
        one, other
    )
