"""The user's hooks: what they see, what they may give, and what they cannot do to a run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.tracking.spool import read_events
from tests.unit.run.training.runs import points, small_model


def train(folder: Path, **settings: Any) -> tuple[sf.RunResult, torch.nn.Module, list[dict[str, Any]]]:
    """Return the result of ten updates, the model and the events."""
    model = small_model()
    given = {
        "validation": points(10, seed=3),
        "updates": 10,
        "global_batch": 8,
        "evaluate_every": 5,
        "device": "cpu",
    }
    result = sf.train(model, points(40), output=folder, track=False, **{**given, **settings})
    return result, model, read_events(Path(result.run_dir) / "events.jsonl")


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def test_each_hook_sees_what_it_is_named_for_in_order(tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []
    hooks = {
        name: lambda it, name=name: seen.append((name, it))
        for name in ("on_update", "on_evaluation", "on_checkpoint", "on_end")
    }
    result, _, events = train(tmp_path, **hooks)
    five = ["on_update"] * 5 + ["on_evaluation", "on_checkpoint"]
    assert [name for name, _ in seen] == [*five, *five, "on_end"]
    losses = [event["metrics"]["loss"] for event in events if event["event"] == "update"]
    assert [it.loss for name, it in seen if name == "on_update"] == losses
    evaluations = [event["metrics"] for event in events if event["event"] == "evaluation"]
    assert [it for name, it in seen if name == "on_evaluation"] == evaluations
    paths = [it for name, it in seen if name == "on_checkpoint"]
    assert [path.name for path in paths] == ["update-00000005", "update-00000010"] and all(
        path.is_dir() for path in paths
    )
    assert seen[-1][1].status == result.status == "finished"


def test_a_window_that_made_no_update_is_no_update(tmp_path: Path) -> None:
    (inputs, label), *others = points(40)
    nowhere = (torch.full_like(inputs, torch.nan), label)
    seen: list[float] = []
    result = sf.train(
        small_model(),
        [nowhere, *others],
        updates=5,
        global_batch=8,
        device="cpu",
        track=False,
        output=tmp_path,
        on_update=lambda each: seen.append(each.loss),
    )
    assert len(seen) == result.updates == 4


def test_a_hook_that_draws_and_changes_modes_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    model = small_model(dropout=0.5)
    plain = small_model(dropout=0.5)

    def meddle(_result: Any) -> None:
        torch.rand(7), random.random()
        model.eval()

    for each, hook in ((plain, None), (model, meddle)):
        sf.train(
            each,
            points(40),
            updates=6,
            global_batch=8,
            device="cpu",
            track=False,
            output=tmp_path,
            on_update=hook,
        )
    assert all(torch.equal(one, other) for one, other in zip(weights(plain), weights(model), strict=True))


def test_numbers_that_hooks_return_are_logged_with_what_they_are_about(tmp_path: Path) -> None:
    _, _, events = train(
        tmp_path,
        on_update=lambda result: {"twice": 2 * result.loss},
        on_evaluation=lambda metrics: {"half": metrics["loss"] / 2},
        on_checkpoint=lambda path: {"files": len(list(path.iterdir()))},
    )
    updates, evaluations, logged = (
        [event for event in events if event["event"] == kind] for kind in ("update", "evaluation", "logged")
    )
    assert all(
        event["metrics"]["twice"] == 2 * event["metrics"]["loss"] and event["logged"] == ["twice"]
        for event in updates
    )
    assert [event["metrics"]["half"] for event in evaluations] == [
        event["metrics"]["loss"] / 2 for event in evaluations
    ]
    assert [(event["update"], event["hook"]) for event in logged] == [
        (5, "on_checkpoint"),
        (10, "on_checkpoint"),
    ]
    assert all(event["metrics"]["files"] > 0 for event in logged)


def test_a_text_stops_the_run_which_goes_on_later(tmp_path: Path) -> None:
    whole, model, _ = train(tmp_path)
    stopped, _, _ = train(tmp_path, on_update=lambda result: "seen enough" if result.learning_rate else None)
    assert (stopped.status, stopped.stop_reason, stopped.resumable, stopped.updates) == (
        "stopped",
        "hooks.on_update: seen enough",
        True,
        1,
    )
    resumed, after, _ = train(tmp_path, resume=stopped.run_dir)
    assert resumed.updates == whole.updates
    assert all(torch.equal(one, other) for one, other in zip(weights(model), weights(after), strict=True))


def _raises(_seen: Any) -> None:
    raise ValueError("no such column")


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (_raises, "failed: ValueError: no such column ("),
        (
            lambda _: 3,
            "returned int; it may return None, numbers by their names, or the reason to stop as text",
        ),
        (
            lambda _: {"norm": torch.ones(())},
            "returned Tensor for 'norm'; it may return numbers, such as tensor.item()",
        ),
        (lambda _: {"loss": 1.0}, "returned 'loss', which the run logs itself; take another name"),
        (lambda _: {1: 1.0}, "returned 1 as a name; names are text"),
    ],
)
@pytest.mark.parametrize("name", ["on_update", "on_evaluation"])
def test_a_hook_that_fails_ends_the_run_resumably_and_is_named(
    tmp_path: Path, name: str, hook: Any, says: str
) -> None:
    result, _, events = train(tmp_path, **{name: hook})
    assert (result.status, result.resumable) == ("stopped", True)
    assert result.stop_reason is not None and f"hooks.{name} {says}" in result.stop_reason
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert any(
        f"hooks.{name} {says}" in message and "can go on once the function is corrected" in message
        for message in warnings
    )


def test_a_hook_that_changes_weights_ends_the_run_before_they_are_saved(tmp_path: Path) -> None:
    model = small_model()

    def change(result: Any) -> None:
        if seen.append(result) or len(seen) == 7:
            with torch.no_grad():
                next(model.parameters()).add_(1)

    seen: list[Any] = []
    with pytest.raises(
        sf.TrainingFailed, match=r"hooks\.on_update \(.*change\) has changed .*weight of the model"
    ):
        sf.train(
            model,
            points(40),
            updates=10,
            global_batch=8,
            device="cpu",
            track=False,
            output=tmp_path,
            checkpoint_every=5,
            on_update=change,
        )
    (run,) = (tmp_path / "run").iterdir()
    assert [path.name for path in (run / "checkpoints").iterdir() if path.is_dir()] == ["update-00000005"]


def test_a_run_without_hooks_looks_at_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snugfit.run.training.hooks import HookCalls

    monkeypatch.setattr(HookCalls, "_versions", lambda self: pytest.fail("looked"))
    train(tmp_path)


def test_a_hook_that_changes_the_data_changes_them_for_the_next_update() -> None:
    def trained(*, mapped: bool) -> list[torch.Tensor]:
        inputs, labels = map(torch.stack, zip(*points(40), strict=True))
        rows = list(zip(inputs, labels, strict=True))
        data: Any = rows if mapped else torch.utils.data.TensorDataset(inputs, labels)

        def forget(_: Any) -> None:
            labels.zero_()

        model = small_model()
        sf.train(model, data, updates=6, global_batch=8, device="cpu", output=None, on_update=forget)
        return weights(model)

    assert all(map(torch.equal, trained(mapped=True), trained(mapped=False)))


@pytest.mark.parametrize("write", [Tensor.copy_, lambda row, label: row.numpy().fill(label.item())])
def test_a_loss_that_changes_the_data_changes_them_for_the_next_window(
    write: Callable[[Tensor, Tensor], object],
) -> None:
    """As one that corrects labels does: each row's is the one that the model gave when it was last trained on."""

    def trained(*, mapped: bool) -> list[torch.Tensor]:
        inputs, labels = map(torch.stack, zip(*points(12), strict=True))
        numbers = torch.arange(12)
        rows = _Rows(inputs, labels, numbers)
        data: Any = rows if mapped else torch.utils.data.TensorDataset(inputs, labels, numbers)

        def corrected(outputs: Tensor, batch: Any) -> Tensor:
            losses = torch.nn.functional.cross_entropy(outputs, batch[1], reduction="none")
            for number, label in zip(batch[2].tolist(), outputs.detach().argmin(dim=1), strict=True):
                write(labels[number], label)
            return losses

        model = small_model()
        sf.train(
            model,
            data,
            loss=corrected,
            forward=lambda model, batch: model(batch[0]),
            updates=20,
            global_batch=4,
            device="cpu",
            output=None,
        )
        return weights(model)

    assert all(map(torch.equal, trained(mapped=True), trained(mapped=False)))


def test_a_run_gives_none_of_its_data_to_numpy_which_could_write_to_them_unseen() -> None:
    data = torch.utils.data.TensorDataset(*map(torch.stack, zip(*points(40), strict=True)))
    settings: dict[str, Any] = {"updates": 3, "global_batch": 8, "device": "cpu", "output": None}
    sf.train(small_model(), data, validation=data, on_update=lambda _: None, **settings)
    assert all(tensor.untyped_storage().resizable() for tensor in data.tensors)


class _Rows(torch.utils.data.Dataset[Any]):
    """Rows of tensors, read one by one when they are asked for."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index].clone() for tensor in self._tensors)


@pytest.mark.parametrize("name", ["on_update", "on_evaluation", "on_checkpoint", "on_end", "stop_when"])
def test_a_function_that_cannot_take_what_it_is_called_with_is_refused_before_the_run(
    name: str, tmp_path: Path
) -> None:
    def two(first: Any, second: Any) -> None: ...

    for function, signature in ((lambda: None, r"\(\)"), (two, r"\(first: .*, second: .*\)")):
        with pytest.raises(
            SettingError, match=rf"{name}: .*{signature} .*cannot be called with one argument"
        ):
            train(tmp_path, **{name: function})
    assert not list(tmp_path.iterdir())
