"""A trained model as a result, a folder and the registry give it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import DataError, ModelError, RunFolderError, SettingError
from snugfit.models.bundle import save_bundle
from tests.laws import problems

LENGTH = 24


def rows(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(LENGTH, 4, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(output: Path | None, model: nn.Module | None = None, **settings: Any) -> sf.RunResult:
    settings = {"epochs": 2, "optimizer": sf.AdamW(learning_rate=0.05), "validation": 0.25, **settings}
    where = {} if output is None else {"track": False}
    return sf.train(
        net() if model is None else model,
        rows(),
        output=output,
        display=None,
        global_batch=8,
        **where,
        **settings,
    )


def probabilities(model: nn.Module, examples: TensorDataset) -> list[float]:
    with torch.no_grad():
        return model.eval()(examples.tensors[0]).softmax(dim=1).max(dim=1).values.tolist()


def test_a_bare_run_writes_nothing_and_keeps_the_best_as_it_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[float, dict[str, torch.Tensor]]] = []
    model = net()

    def scored(metrics: Any) -> None:
        seen.append((metrics["loss"], {name: each.clone() for name, each in model.state_dict().items()}))

    # a rate at which later evaluations are worse
    result = trained(
        None, model, optimizer=sf.SGD(learning_rate=8.0), epochs=4, on_evaluation=scored, evaluate_every=1
    )
    assert os.listdir(tmp_path) == []
    best = min(range(len(seen)), key=lambda place: seen[place][0])
    assert best < len(seen) - 1, "the last is the best, which shows nothing"
    assert {name: each.tolist() for name, each in result.model.state_dict().items()} == {
        name: each.tolist() for name, each in seen[best][1].items()
    }
    assert (result.run_dir, result.resumable) == (None, False)
    assert model.state_dict()["0.weight"].tolist() == seen[-1][1]["0.weight"].tolist(), (
        "the last weights stay in the model"
    )


def test_a_bare_run_gives_the_weights_of_an_average() -> None:
    result = trained(None, model := net(), techniques=[sf.EMA(decay=0.5)], epochs=1)
    assert result.best is not None and result.best["weights"] == "ema"
    assert not torch.equal(result.model.get_parameter("0.weight"), model.get_parameter("0.weight"))
    assert result.trained.about["weights"] == "ema"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resume", "last"),
        ("checkpoint_every", 1),
        ("non_finite", "roll_back"),
        ("track_uri", "sqlite:///a.db"),
        ("track_histograms", True),
    ],
)
def test_a_bare_run_refuses_what_needs_a_folder(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{name}.*output=None writes nothing"):
        trained(None, **{name: value})


def test_a_bare_run_that_is_stopped_before_its_first_evaluation_has_no_best_model() -> None:
    result = trained(None, on_update=lambda _: "enough")
    assert (result.status, result.resumable) == ("stopped", False)
    with pytest.raises(RunFolderError, match="stopped before its first evaluation"):
        _ = result.model


@pytest.mark.parametrize("bare", [True, False])
def test_a_result_predicts_by_the_best_model(bare: bool, tmp_path: Path) -> None:
    result = trained(None if bare else tmp_path)
    fresh = rows(seed=5)
    predictions = result.predict(fresh)
    logits = result.model(fresh.tensors[0])
    assert [each["prediction"] for each in predictions] == logits.argmax(dim=1).tolist()
    assert [each["probability"] for each in predictions] == pytest.approx(
        probabilities(result.model, fresh), abs=1e-6
    )
    assert torch.allclose(torch.stack([each["output"] for each in predictions]), logits, atol=1e-6)
    alone = result.predict([fresh.tensors[0][0]])  # without a label
    assert alone[0]["prediction"] == predictions[0]["prediction"]


def test_a_result_predicts_under_the_numerics_of_the_training_and_by_the_users_own_collate_and_forward(
    tmp_path: Path,
) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = net(), []

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(values)
            self.seen.append(logits.dtype)  # type: ignore[attr-defined]
            return logits

    def collate(examples: list[Any]) -> dict[str, torch.Tensor]:
        return {
            "points": torch.stack([each[0] for each in examples]),
            "labels": torch.stack([each[1] for each in examples]),
        }

    result = trained(
        tmp_path,
        Named(),
        techniques=[sf.BF16()],
        collate=collate,
        forward=lambda model, data: model(data["points"]),
    )
    model = result.model
    model.seen.clear()  # type: ignore[operator, union-attr]
    assert len(result.predict(rows())) == LENGTH
    assert set(model.seen) == {torch.bfloat16}  # type: ignore[arg-type]


def test_a_run_with_functions_of_its_own_predicts_by_them_or_not_at_all(tmp_path: Path) -> None:
    def ten_times(model: nn.Module, data: Any) -> torch.Tensor:
        scores: torch.Tensor = model(10 * data[0])
        return scores

    result = trained(tmp_path, forward=ten_times)
    lacking = sf.load(str(result.run_dir), model=net())
    assert probabilities(lacking.model, rows()) == probabilities(result.model, rows())
    for use in (lacking.predict, lacking.evaluate):
        with pytest.raises(ModelError, match=r"trained with forward of your own.* sf.load\(…, forward=…\)"):
            use(rows())
    again = sf.load(str(result.run_dir), model=net(), forward=ten_times)
    assert again.evaluate(rows()).metrics == result.evaluate(rows()).metrics


@pytest.mark.parametrize("bare", [False, True])
def test_a_tuple_of_inputs_without_labels_is_given_whole(bare: bool, tmp_path: Path) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, values: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
            scores: torch.Tensor = self.net(values)
            return scores if shift is None else scores + shift

    examples = [(each, torch.full((3,), place), label) for place, (each, label) in enumerate(rows())]
    where: dict[str, Any] = {"output": None} if bare else {"output": tmp_path, "track": False}
    result = sf.train(Shifted(), examples, updates=2, global_batch=8, display=None, **where)
    given = result if bare else sf.load(str(result.run_dir), model=Shifted())
    labelled, plain = (given.predict(each) for each in (examples, [each[:2] for each in examples]))
    assert all(
        torch.equal(one["output"], other["output"]) for one, other in zip(labelled, plain, strict=True)
    )


@pytest.mark.parametrize("wrong", [{"values": torch.ones(4)}, "rows.csv", iter(())])
def test_what_is_no_list_of_rows_is_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match="rows: got a .* expected rows. Give a list of them, also of one"):
        trained(None).predict(wrong)


def test_rows_whose_columns_forward_does_not_take_are_named() -> None:
    with pytest.raises(DataError, match=r"gives the entries x .* forward takes \(input\)"):
        trained(None).predict([{"x": torch.ones(4)}])


def test_adapters_are_merged_in_what_a_result_gives(tmp_path: Path) -> None:
    result = trained(tmp_path, techniques=[sf.LoRA(targets=["0"], rank=2)])
    assert set(result.model.state_dict()) == set(net().state_dict())
    again = sf.load(str(result.run_dir), model=net())
    assert again.predict(rows())[0]["prediction"] == result.predict(rows())[0]["prediction"]


def test_a_run_is_loaded_again_with_a_model_that_takes_its_weights(tmp_path: Path) -> None:
    result = trained(tmp_path)
    again = sf.load(str(result.run_dir), model=net())
    assert probabilities(again.model, rows()) == probabilities(result.model, rows())
    assert again.run == Path(str(result.run_dir))
    assert again.about["update"] == result.best["update"]  # type: ignore[index]
    assert repr(again).startswith("TrainedModel: Sequential for python of ")
    assert not again.model.training


def test_without_one_a_module_of_python_cannot_be_made_again(tmp_path: Path) -> None:
    result = trained(tmp_path)
    with pytest.raises(ModelError, match="no package.module:function to make it again"):
        sf.load(str(result.run_dir))


def test_the_function_that_makes_a_model_again_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))\n"
    (tmp_path / "nets_of_this_folder.py").write_text(made, encoding="utf-8")
    save_bundle(tmp_path / "copy", net(), {"task": "python", "model": "nets_of_this_folder:make"})
    monkeypatch.chdir(tmp_path)
    assert probabilities(sf.load("copy", allow_code=True).model, rows()) == probabilities(net(), rows())


def test_a_model_that_comes_from_no_run_does_not_go_on(tmp_path: Path) -> None:
    save_bundle(tmp_path / "copy", net(), {"task": "python"})
    with pytest.raises(RunFolderError, match="comes from no run's folder"):
        sf.load(tmp_path / "copy", model=net()).resume()


def test_a_model_of_a_task_that_predicts_nothing_says_so_and_gives_its_module(tmp_path: Path) -> None:
    save_bundle(tmp_path / "best", problems.gpt2(()).model(torch.float32), {"task": "audio"})
    loaded = sf.load(tmp_path / "best")
    assert type(loaded.model).__name__ == "GPT2LMHeadModel"
    with pytest.raises(ModelError, match="task 'audio'.*snugfit.load"):
        loaded.predict([{"text": "Once"}])


def test_the_history_has_a_row_for_each_update_and_what_was_scored_at_it(tmp_path: Path) -> None:
    for output in (None, tmp_path):
        table = trained(output, metrics=["accuracy"]).history
        assert list(table["update"]) == [1, 2, 3, 4, 5, 6]
        assert table["loss"].notna().all()
        scored = table.dropna(subset=["validation_loss"])
        assert list(scored["update"]) == [3, 6]
        assert scored["validation_accuracy"].between(0, 1).all()


def test_a_result_is_a_few_lines_and_its_page_in_a_notebook(tmp_path: Path) -> None:
    for output in (None, tmp_path):
        result = trained(output)
        text, page = repr(result), result._repr_html_()
        assert text.startswith("RunResult: finished, 6 updates, 2 epochs, ")
        assert len(text.splitlines()) <= 12
        assert "srcdoc=" in page and "&lt;svg" in page
        json.dumps(result.as_dict())


@pytest.mark.parametrize("bare", [True, False])
def test_a_result_scores_rows_by_the_best_model(bare: bool, tmp_path: Path) -> None:
    result = trained(None if bare else tmp_path)
    fresh = rows(seed=5)
    inputs, labels = fresh.tensors
    with torch.no_grad():
        logits = result.model(inputs)
    found = result.evaluate(fresh)
    assert found.metrics["loss"] == pytest.approx(
        nn.functional.cross_entropy(logits, labels).item(), rel=1e-6
    )
    assert found.metrics["accuracy"] == (logits.argmax(dim=1) == labels).double().mean().item()
    assert found.rows == found.details.rows == LENGTH
    text, page = repr(found), found._repr_html_()
    assert text.startswith("Evaluation: 24 rows of the data, by ") and len(text.splitlines()) <= 12
    assert "&lt;h1&gt;Evaluation&lt;/h1&gt;" in page and "The worst rows" in page
    json.dumps(found.as_dict())
    assert result.evaluate(fresh, bad_rows="skip").metrics == found.metrics
    own = result.evaluate(fresh, {"high": lambda outputs, batch: outputs.max(dim=1).values})
    assert own.metrics["high"] == pytest.approx(logits.max(dim=1).values.mean().item(), rel=1e-6)
    with pytest.raises(SettingError, match="no metric 'acuracy'. Did you mean 'accuracy'"):
        result.evaluate(fresh, "acuracy")
    with pytest.raises(SettingError, match="^metrics: "):
        result.evaluate(fresh, "no_such_module:metric")
    with pytest.raises(DataError, match="is the text 'x.csv', and rows are expected"):
        result.evaluate("x.csv")


def test_a_model_is_scored_by_the_loss_of_ones_own_where_that_is_there(tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs.sum(dim=1) - batch[1]) ** 2

    result = trained(tmp_path, loss=loss)
    inputs, labels = rows().tensors
    expected = ((result.model(inputs).sum(dim=1) - labels) ** 2).mean().item()
    assert result.evaluate(rows()).metrics["loss"] == pytest.approx(expected, rel=1e-6)
    loaded = sf.load(str(result.run_dir), model=net(), loss=loss)
    assert loaded.evaluate(rows()).metrics["loss"] == pytest.approx(expected, rel=1e-6)
    in_memory = trained(None, loss=loss)
    assert in_memory.evaluate(rows()).metrics["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ModelError, match=r"a loss of your own, which is not kept with it. Give .*loss="):
        sf.load(str(result.run_dir), model=net()).evaluate(rows())
