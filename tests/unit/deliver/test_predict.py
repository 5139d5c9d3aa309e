"""Prediction under the numerics of the run."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.entry import as_entry
from snugfit.core.losses import cross_entropy
from snugfit.deliver import predict, predictor
from snugfit.deliver.predict import evaluate_file
from snugfit.deliver.predictor import extended, load_predictor, predictor_of
from snugfit.errors import DataError, ModelError, UserError
from snugfit.models.bundle import load_bundle, save_bundle
from snugfit.step.evaluate import evaluate
from snugfit.tasks import known
from snugfit.techniques import find
from tests.laws import problems


class Classifier(nn.Module):
    """Tells in which precision its products are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids).mean(dim=1))
        self.seen.append(logits.dtype)
        return {"logits": logits}


@pytest.mark.parametrize(
    ("numerics", "dtype"),
    [
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ({"fp16": {"force": True}}, torch.float16),
    ],
)
def test_a_bundle_predicts_in_the_precision_it_was_trained_in(numerics: str, dtype: torch.dtype) -> None:
    model = Classifier()
    meta = {"task": "python", "loss": "cross_entropy", "numerics": numerics}
    ready = predictor_of(model, meta, None, "cpu", "best")
    batch = Batch.of({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([1])})
    ready.predict([{"input_ids": torch.tensor([1, 2])}])
    scored = dataclasses.replace(ready, use=dataclasses.replace(ready.inference, loss=cross_entropy)).scored()
    with scored.forward(batch):
        scored.run(batch)
    assert model.seen == [dtype, dtype]
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_of_another_task_is_refused_by_evaluate_in_its_own_words(tmp_path: Path) -> None:
    save_bundle(tmp_path / "best", problems.gpt2(()).model(torch.float32), {"task": "audio"})
    with pytest.raises(
        ModelError, match="task 'audio', and those that predict are of .* and text-classification"
    ):
        evaluate_file(tmp_path / "best", __file__, ())


def test_a_model_whose_tokenizer_is_gone_says_so(tmp_path: Path) -> None:
    save_bundle(tmp_path / "best", problems.gpt2(()).model(torch.float32), {"task": "causal-lm"})
    with pytest.raises(ModelError, match="has no tokenizer, which predictions need"):
        evaluate_file(tmp_path / "best", __file__, ())


@pytest.mark.parametrize("name", ["qk_norm", "embedding_norm"])
def test_a_bundle_is_loaded_with_the_norms_that_a_technique_had_added(name: str, tmp_path: Path) -> None:
    technique = find(name)()
    model = technique.prepare(problems.bert(()).model(torch.float32)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm.weight" in key:
                parameter.uniform_(0.5, 1.5)
    save_bundle(tmp_path / "best", model, {"extended_by": [as_entry(technique)]})
    loaded, _, _ = load_bundle(tmp_path / "best", extend=extended)
    window = problems.bert(()).windows(torch.float32)[0]
    del window["labels"]
    assert torch.equal(loaded(**window).logits, model(**window).logits)


def test_a_model_that_its_task_makes_is_changed_as_it_was_when_it_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def net(_meta: object = None) -> nn.Module:
        return nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 2, 1))

    technique = find("blurpool")()
    model = technique.prepare(net())
    save_bundle(tmp_path / "best", model, {"task": "python", "extended_by": [as_entry(technique)]})
    card = dataclasses.replace(known("text-regression"), make_model=net, inference=None)
    monkeypatch.setattr(predictor, "_card", lambda *_: card)
    images = torch.randn(1, 1, 8, 8)
    assert torch.equal(load_predictor(tmp_path / "best").model(images), model(images))


@pytest.mark.parametrize(("kind", "mode"), [("cpu", 2), ("cuda", 0), (None, 0)])
def test_a_bundle_of_a_deterministic_run_computes_as_the_run_did_on_a_device_of_its_kind(
    kind: str | None, mode: int
) -> None:
    modes: list[int] = []
    model = Classifier()
    model.register_forward_hook(lambda *_: modes.append(torch.get_deterministic_debug_mode()))
    meta = {"task": "python", "loss": "cross_entropy", **({} if kind is None else {"deterministic": kind})}
    ready = predictor_of(model, meta, None, "cpu", "best")
    batch = Batch.of({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([1])})
    ready.predict([{"input_ids": torch.tensor([1, 2])}])
    own = dataclasses.replace(ready.inference, loss=cross_entropy)
    evaluate(dataclasses.replace(ready, use=own).scored(), [batch], {})
    assert modes == [mode, mode]
    assert torch.get_deterministic_debug_mode() == 0


def test_a_prediction_rounds_products_on_a_gpu_as_the_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr(
        predictor, "products_as_chosen", lambda device: devices.append(device) or nullcontext()
    )
    predictor_of(Classifier(), {"task": "python"}, None, "cpu", "best").predict(
        [{"input_ids": torch.tensor([1, 2])}]
    )
    assert devices == [torch.device("cpu")]


def test_rows_of_texts_are_mappings_and_say_so_where_they_are_not() -> None:
    meta = {
        "task": "text-classification",
        "labels": ["a", "b"],
        "text_columns": ["text"],
        "label_column": "label",
        "max_length": 8,
    }
    ready = predictor_of(Classifier(), meta, None, "cpu", "best")
    with pytest.raises(DataError, match="rows: row 2 is str, and a row has its columns by name"):
        ready.predict([{"text": "fine"}, "fine"])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["out.jsonl", "out.json", "out.ndjson", "out.Parquet", "out.tsv"])
def test_a_file_of_predictions_that_is_named_as_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="named as another format, and predictions are CSV. Name a .csv file"):
        predict.predict_file("no-run-is-looked-for", "rows.csv", tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("output", "data", "views", "said"),
    [
        ("folder", "rows.csv", 1, "-o: folder is a folder. Name a file in it."),
        ("rows.csv/out.csv", "rows.csv", 1, "-o: rows.csv/out.csv cannot be written: rows.csv is no folder"),
        ("new/out.csv", "row.csv", 1, "data: there is no file row.csv .*Did you mean 'rows.csv'"),
        ("new/out.csv", "rows.csv", "flop", "--views: got flop. Give a positive number, or flips"),
        ("new/out.csv", "rows.csv", 0, "--views: got 0"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, data: str, views: int | str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.csv").write_text("text\nfine\n")
    with pytest.raises(UserError, match=said):
        predict.predict_file("no-run-is-looked-for", data, Path(output), views=views)
    if output == "new/out.csv":
        with pytest.raises(UserError, match=said):
            evaluate_file("no-run-is-looked-for", data, views=views)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "rows.csv"]


def test_predictions_do_not_replace_the_rows_that_they_are_of(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nfine\n")
    (tmp_path / "link.csv").symlink_to(rows)
    for output in (rows, tmp_path / "link.csv"):
        with pytest.raises(DataError, match="is the file of the rows. Name another file"):
            predict.predict_file("no-run-is-looked-for", str(rows), output)
    assert rows.read_text() == "text\nfine\n"


def test_code_of_models_that_were_registered_before_finds_what_loads_them() -> None:
    assert vars(predict)["load_predictor"] is load_predictor, "their code imports it from there"
