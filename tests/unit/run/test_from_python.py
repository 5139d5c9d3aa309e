"""`snugfit.train` on modules and data made in Python."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import snugfit as sf
from snugfit import planner
from snugfit.errors import (
    DataError,
    PlanConflict,
    RunFolderError,
    SettingError,
    TrackingError,
    TrainingFailed,
    UserError,
)
from snugfit.models.bundle import load_bundle
from snugfit.run.from_python import _in_python
from snugfit.tracking.spool import read_events
from tests.laws.models import Reader
from tests.laws.problems import differences
from tests.laws.test_resume_run import Texts
from tests.unit.run.training.runs import points, small_model

DATA = points(40)


def right(outputs: Tensor, data: Any) -> Tensor:
    return (outputs.argmax(dim=1) == data[1]).float()


def train(model: nn.Module | None = None, data: Any = DATA, **settings: Any) -> sf.RunResult:
    defaults: dict[str, Any] = {
        "optimizer": sf.SGD(learning_rate=0.2),
        "epochs": 2,
        "global_batch": 8,
        "device": "cpu",
        "track": False,
    }
    return sf.train(small_model() if model is None else model, data, **{**defaults, **settings})


class Trained:
    """A run with averaged weights, evaluated twice on points of its own."""

    def __init__(self, folder: Path) -> None:
        self.model = small_model()
        self.shown: list[dict[str, Any]] = []
        self.validation = points(10, seed=3)
        self.random = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        self.result = train(
            self.model,
            techniques=[sf.EMA(decay=0.9), sf.ClipNorm(max_norm=1.0)],
            validation=self.validation,
            metrics={"right": right},
            best="max:right",
            name="points",
            output=folder / "runs",
            display=self.shown.append,
        )
        self.random_after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        self.run_dir = Path(self.result.run_dir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


def test_the_result_says_how_the_run_ended(trained: Trained) -> None:
    found = trained.result.as_dict()
    assert (found["status"], found["stop_reason"], found["resumable"]) == ("finished", None, False)
    assert (found["updates"], found["epochs"]) == (10, 2.0)
    assert set(found["best"]["metrics"]) == set(found["last"]["metrics"]) == {"loss", "right"}
    assert found["best"]["update"] in (5, 10)
    assert found["seconds"] > 0
    assert found["examples_per_second"] > 0
    assert found["peak_memory_bytes"] > 1e7
    assert found["tracker_run_id"] is None
    json.dumps(found, allow_nan=False)


def test_the_result_of_a_longer_run_has_advice_and_that_of_a_short_one_says_it_cannot_tell(
    trained: Trained, tmp_path: Path
) -> None:
    assert trained.result.advice is not None
    assert trained.result.advice["verdict"] == "unknown"
    result = train(validation=points(10, seed=3), evaluate_every=1, epochs=4, output=tmp_path)
    assert result.advice is not None
    assert result.advice["verdict"] in ("longer", "shorter", "stop")
    end = read_events(Path(result.run_dir) / "events.jsonl")[-1]
    assert end["advice"] == result.advice
    assert train(output=tmp_path).advice is None, "nothing was evaluated"
    stopped = train(
        validation=points(10, seed=3), evaluate_every=1, epochs=4, output=tmp_path, stop_after_seconds=0.0
    )
    assert stopped.advice is None, "it is not over"


def test_a_trigger_of_ones_own_stops_the_run(tmp_path: Path) -> None:
    result = train(
        validation=points(10, seed=3),
        evaluate_every=1,
        output=tmp_path,
        stop_when=lambda history: "twice" if len(history) == 2 else None,
    )
    assert (result.updates, result.stop_reason) == (2, "early stopping: twice")


def test_the_folder_has_events_checkpoints_the_best_model_and_a_report(trained: Trained) -> None:
    assert trained.run_dir.parent.name == "points"
    names = {path.name for path in trained.run_dir.iterdir()}
    assert {"events.jsonl", "checkpoints", "best", "report.html"} <= names
    assert not list(trained.run_dir.rglob("*.pt")) + list(trained.run_dir.rglob("*.pkl"))
    page = (trained.run_dir / "report.html").read_text(encoding="utf-8")
    assert "points" in page
    assert "<svg" in page


def test_the_events_tell_the_run_from_its_beginning_to_its_end(trained: Trained) -> None:
    events = read_events(trained.run_dir / "events.jsonl")
    shown = [event["event"] for event in trained.shown]
    assert [kind for kind in shown if kind != "doing"] == [event["event"] for event in events]
    assert shown.count("doing") == shown.count("evaluation") == 2
    first, last = events[0], events[-1]
    assert (first["event"], first["name"], first["id"]) == ("run", "points", trained.run_dir.name)
    assert (first["total_updates"], first["updates_per_epoch"]) == (10, 5)
    assert first["parameters"] == {"total": 51, "trainable": 51}
    assert first["data"] == {"train": 40, "validation": 10}
    assert {"torch", "python"} <= set(first["versions"])
    assert (last["event"], last["status"], last["updates"]) == ("end", "finished", 10)


def test_biases_are_told_to_have_no_weight_decay(tmp_path: Path) -> None:
    model = small_model()
    result = train(model, optimizer=sf.AdamW(weight_decay=0.1), epochs=1, output=tmp_path)
    biases = sum(each.numel() for name, each in model.named_parameters() if name.endswith("bias"))
    total = sum(each.numel() for each in model.parameters())
    run = read_events(Path(result.run_dir) / "events.jsonl")[0]
    assert run["weight_decay"] == {"0.1": total - biases, "0": biases}
    assert f"none on {biases:,} parameters" in (Path(result.run_dir) / "report.html").read_text()


def test_the_best_bundle_is_the_model_that_was_scored(trained: Trained) -> None:
    model, meta, tokenizer = load_bundle(trained.run_dir / "best", model=small_model(seed=5))
    assert tokenizer is None
    assert not model.training
    best = trained.result.best
    assert best is not None
    assert (meta["task"], meta["weights"], meta["update"]) == ("python", "ema", best["update"])
    assert meta["metrics"] == best["metrics"]
    inputs, labels = (torch.stack(column) for column in zip(*trained.validation, strict=True))
    with torch.no_grad():
        outputs = model(inputs)
    assert F.cross_entropy(outputs, labels).item() == pytest.approx(best["metrics"]["loss"], rel=1e-6)
    assert right(outputs, (inputs, labels)).mean().item() == pytest.approx(best["metrics"]["right"])


def test_it_learns(trained: Trained) -> None:
    losses = [
        e["metrics"]["loss"] for e in read_events(trained.run_dir / "events.jsonl") if e["event"] == "update"
    ]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_the_callers_random_state_is_left_alone(trained: Trained) -> None:
    for before, after in zip(trained.random, trained.random_after, strict=True):
        assert torch.equal(before, after) if isinstance(before, Tensor) else before == after


def test_the_model_is_trained_in_place_with_the_raw_weights_of_the_end(trained: Trained) -> None:
    newest = sorted((trained.run_dir / "checkpoints").iterdir())[-1]
    raw = load_file(newest / "model.safetensors")
    for name, parameter in trained.model.named_parameters():
        assert torch.equal(raw[f"model/parameters/{name}"], parameter)


@pytest.mark.parametrize("data", ["tensors", "mappings", "fraction"])
def test_data_may_come_in_several_forms(data: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"updates": 1, "output": tmp_path}
    if data == "tensors":
        columns = [torch.stack(column) for column in zip(*DATA, strict=True)]
        result = train(data=TensorDataset(*columns), **settings)
    elif data == "mappings":
        rows = [{"input": x, "labels": y} for x, y in DATA]
        result = train(data=rows, **settings)
    else:
        result = train(validation=0.25, **settings)
        assert result.best is not None
    assert result.updates == 1


def test_rows_of_a_data_frame_train_and_are_predicted_as_dicts_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{**{f"x{place}": float(each) for place, each in enumerate(x)}, "labels": int(y)} for x, y in DATA]
    frame = pandas.DataFrame(rows, index=range(100, 100 + len(rows)))

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        values = [[value for name, value in row.items() if name != "labels"] for row in rows]
        return {"input": torch.tensor(values), "labels": torch.tensor([row["labels"] for row in rows])}

    of_rows, of_frame = (
        train(data=data, validation=0.25, collate=collate, updates=3, output=tmp_path / str(place))
        for place, data in enumerate((rows, frame))
    )
    assert not differences(of_rows.model.state_dict(), of_frame.model.state_dict())
    predictions = zip(of_frame.predict(frame), of_rows.predict(rows), strict=True)
    assert all(torch.equal(one["output"], other["output"]) for one, other in predictions)


def test_somebodys_module_with_tied_weights_and_nested_inputs_trains_unmodified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, texts = Reader(dropout=0.1), Texts(12, per_token=True, context=True)
    result = train(
        model,
        texts,
        collate=texts.collate,
        validation=0.25,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        techniques=[sf.SAM(rho=0.05), sf.EMA(decay=0.9)],
        micro_batch=3,
        output=tmp_path,
    )
    assert result.status == "finished"
    assert model.head.weight is model.tokens.weight
    again, meta, _ = load_bundle(Path(result.run_dir) / "best", model=Reader())
    assert again.head.weight is again.tokens.weight
    assert meta["weights"] == "ema"


def test_without_an_optimizer_it_is_adamw(tmp_path: Path) -> None:
    result = train(optimizer=None, updates=1, output=tmp_path)
    run = read_events(Path(result.run_dir) / "events.jsonl")[0]
    assert list(run["recipe"]["techniques"][0]) == ["adamw"]


def resumable(output: Path) -> sf.RunResult:
    result = train(stop_after_seconds=0.0, output=output, techniques=[sf.EMA(decay=0.9)], validation=DATA[:8])
    assert (result.status, result.resumable, result.updates) == ("stopped", True, 1)
    return result


def test_a_stopped_run_goes_on_to_the_result_of_the_uninterrupted_one(tmp_path: Path) -> None:
    stopped = resumable(tmp_path)
    model = small_model(seed=2)
    same: dict[str, Any] = {"techniques": [sf.EMA(decay=0.9)], "validation": DATA[:8], "output": tmp_path}
    result = train(model, resume=stopped.run_dir, **same)
    assert (result.run_dir, result.status, result.updates) == (stopped.run_dir, "finished", 10)
    whole_model = small_model()
    whole = train(whole_model, **same)
    assert not differences(whole_model.state_dict(), model.state_dict())
    assert (result.best, result.last) == (whole.best, whole.last)


def test_a_finished_run_that_is_resumed_says_so_and_how_a_longer_one_is_begun(tmp_path: Path) -> None:
    run = Path(train(output=tmp_path).run_dir)

    def notes() -> list[str]:
        return [
            each["text"] for each in read_events(run / "events.jsonl", raw=True) if each["event"] == "note"
        ]

    assert not any("had finished" in note for note in notes())
    again = train(output=tmp_path, resume=run)
    assert (again.status, again.updates) == ("finished", 10)
    assert notes()[-1].endswith("nothing was trained. A longer one is a new run: sf.train(…, epochs=N)")


def test_a_stopped_run_goes_on_under_another_placement(tmp_path: Path) -> None:
    """As one does that had too little memory: the updates are the same."""
    stopped = resumable(tmp_path)
    same: dict[str, Any] = {"validation": DATA[:8], "output": tmp_path}
    model = small_model(seed=2)
    train(model, techniques=[sf.EMA(decay=0.9), sf.Recompute()], resume=stopped.run_dir, **same)
    whole = small_model()
    train(whole, techniques=[sf.EMA(decay=0.9)], **same)
    assert not differences(whole.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"global_batch": 4},
            r"^resume: not what it was when this run began\. global_batch: 8 then, 4 now",
        ),
        ({"seed": 1}, "^resume: .* seed: 0 then, 1 now"),
        ({"data": points(41)}, "^resume: .* examples: 40 then, 41 now"),
        ({"epochs": 3}, "^resume: .* updates: 10 then, 15 now"),
        ({"techniques": [sf.EMA(decay=0.5)]}, r"^resume: .* techniques: .*0\.9.* then, .*0\.5.* now"),
        (
            {"model": nn.Linear(2, 3)},
            "^resume: .* model: class 'torch.*Sequential' then, 'torch.*Linear' now",
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    stopped = resumable(tmp_path)
    told = (Path(stopped.run_dir) / "events.jsonl").read_bytes()
    settings = {
        "techniques": [sf.EMA(decay=0.9)],
        "validation": DATA[:8],
        "resume": stopped.run_dir,
        **change,
    }
    with pytest.raises(UserError, match=message):
        train(**settings)
    assert (Path(stopped.run_dir) / "events.jsonl").read_bytes() == told


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"data": []}, DataError, "^data: holds no examples"),
        (
            {"data": iter(DATA)},
            SettingError,
            "^data: is a list_iterator, which can be read once. Give the function that makes it",
        ),
        ({"data": DataLoader(DATA)}, DataError, "^data: is a DataLoader. Give its data set"),
        (
            {"data": "x.csv"},
            DataError,
            "^data: is the text .x.csv., and rows are expected. Give a data set; a file",
        ),
        ({"validation": []}, DataError, "^validation: holds no examples"),
        (
            {"data": (torch.randn(32, 2), torch.zeros(32))},
            DataError,
            r"^data: is a tuple of columns \(2, each of 32 rows\), and not 32 examples.*TensorDataset",
        ),
        (
            {"data": (np.zeros((32, 2), np.float32), np.zeros(32)), "validation": 0.5},
            DataError,
            r"^data: is a tuple of columns \(2, each of 32 rows\), and not 32 examples.*TensorDataset",
        ),
        (
            {"data": {"inputs": torch.randn(32, 2)}},
            DataError,
            r"^data: is a dict of columns \(1, each of 32 rows\)",
        ),
        ({"validation": 0.01}, DataError, "^validation: 0.01 of 40 examples leaves one part empty"),
        ({"validation": 1.0}, DataError, "^validation: got 1, expected a fraction between 0 and 1"),
        ({"validation": -0.1}, DataError, "^validation: got -0.1, expected a fraction"),
        ({"model": nn.Bilinear}, SettingError, r"^model: got the class Bilinear, .* Call it: Bilinear\(…\)"),
        (
            {"model": nn.Linear(2, 3, device="meta")},
            SettingError,
            r"^model: 'weight' is on the meta device, where .* model.to_empty",
        ),
        (
            {"data": [(torch.randn(2), "ab"[index % 2]) for index in range(8)]},
            DataError,
            "^loss: labels are no tensor but values such as '[ab]'. Give numbers",
        ),
        ({"model": right}, SettingError, "^model: got the function right, expected an nn.Module"),
        ({"model": "bert-base-cased"}, SettingError, "^model: got a str, expected an nn.Module"),
        (
            {"metrics": ["right"], "validation": 0.5},
            SettingError,
            r"^metrics: no metric 'right'\. Known: ",
        ),
        ({"metrics": "perplexty", "validation": 0.5}, SettingError, "Did you mean 'perplexity'"),
        (
            {"metrics": "f1", "validation": 0.5},
            SettingError,
            r"^metrics: no metric 'f1'\. Did you mean '.*macro_f1' or ",
        ),
        (
            {"metrics": {"right": right}},
            SettingError,
            "^metrics: right need data to be measured on. Give validation",
        ),
        (
            {"metrics": {"right": right}, "validation": 0.5},
            SettingError,
            "^best: .*Write 'max:right'",
        ),
        ({"best": "accuracy", "validation": 0.5}, SettingError, "^best: 'accuracy' is not among"),
        ({"patience": 2}, SettingError, "^patience: needs data"),
        ({"stop_when": print}, SettingError, "^stop_when: needs data"),
        (
            {"min_delta": 0.1, "validation": 0.5},
            SettingError,
            "^patience: is missing.*min_delta says what it counts",
        ),
        (
            {"patience": 0, "validation": 0.5},
            SettingError,
            "^patience: must be a positive whole number",
        ),
        (
            {"epochs": None},
            SettingError,
            "^train: one of epochs and updates says how long the run is, found neither",
        ),
        ({"epochs": -1}, SettingError, "^epochs: must be a positive number"),
        ({"updates": 0}, SettingError, "^updates: must be a positive whole number"),
        ({"global_batch": 0}, SettingError, "^global_batch: must be a positive whole number"),
        ({"micro_batch": 0}, SettingError, "^micro_batch: must be a positive whole number, auto or null"),
        ({"num_workers": -1}, SettingError, "^num_workers: must be a whole number of at least 0"),
        ({"device": "cuda:99"}, SettingError, "^device: 'cuda:99' cannot be used here"),
        ({"device": "gpu"}, SettingError, "^device: 'gpu' cannot be used here"),
        pytest.param(
            {"device": "mps"},
            SettingError,
            r"^device: 'mps' cannot be used here: .{,100} Use auto or cpu\.$",
            marks=pytest.mark.skipif(torch.backends.mps.is_available(), reason="it can be used"),
        ),
        (
            {"loss": "crossentropy"},
            SettingError,
            "^loss: no built-in 'crossentropy'. Did you mean 'cross_entropy'",
        ),
        ({"loss": nn.CrossEntropyLoss()}, SettingError, "^loss: CrossEntropyLoss has reduction='mean'"),
        (
            {"loss": "mse", "metrics": "perplexity", "validation": 0.5},
            SettingError,
            "^metrics: perplexity",
        ),
        (
            {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])},
            SettingError,
            "^optimizer: .* are not of the model",
        ),
        ({"techniques": [sf.AdamW()]}, PlanConflict, "both give the optimizer"),
        ({"techniques": [sf.EMA(), sf.EMA()]}, PlanConflict, "'ema' is given twice"),
        ({"model": nn.ReLU()}, SettingError, "^model: is a ReLU without parameters"),
        ({"resume": "nowhere"}, RunFolderError, "^nowhere: no such run folder"),
        ({"track": True, "track_uri": "not a uri://"}, TrackingError, "not a uri"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing_behind(
    tmp_path: Path, settings: dict[str, Any], error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        train(output=tmp_path / "runs", **settings)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "runs").glob("**/*"))


def test_an_unwritable_output_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunFolderError, match="^output: the run's folder .* cannot be written"):
        train(output=tmp_path / "runs")


def test_what_a_model_raises_comes_through_and_the_run_is_told_as_failed(tmp_path: Path) -> None:
    class Broken(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(Broken(2, 3), output=tmp_path, name="broken")
    (folder,) = (tmp_path / "broken").iterdir()
    end = read_events(folder / "events.jsonl")[-1]
    assert (end["event"], end["status"], end["resumable"]) == ("end", "failed", False)
    assert end["stop_reason"] == "ZeroDivisionError: mine"


def test_the_model_given_is_not_replaced_by_a_copy(tmp_path: Path) -> None:
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    train(model, output=tmp_path, updates=1)
    assert differences(before, model.state_dict())


def test_adapters_are_put_into_the_model_given_and_merged_in_the_best_one(tmp_path: Path) -> None:
    model = small_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = train(model, output=tmp_path, updates=3, techniques=[sf.LoRA(rank=2)])
    assert any("lora_A" in name for name, _ in model.named_parameters())
    best = load_bundle(Path(result.run_dir) / "best", model=small_model())[0]
    assert set(best.state_dict()) == set(before)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in best.state_dict().items())
    assert {path.name for path in (Path(result.run_dir) / "best" / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


@pytest.mark.slow
def test_a_run_that_is_not_tracked_loads_no_tracker_nor_other_extras() -> None:
    code = """
import sys, torch, snugfit as sf
data = [(torch.ones(2), torch.tensor(0)), (torch.zeros(2), torch.tensor(1))]
sf.train(torch.nn.Linear(2, 2), data, validation=data, epochs=1, track=False, device="cpu")
extras = {"mlflow", "transformers", "torchmetrics", "datasets", "matplotlib", "pydantic", "typer", "pandas"}
print(sorted(extras & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_a_resume_that_is_refused_removes_nothing_even_when_the_events_were_lost(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))
    options = {"epochs": 1, "output": tmp_path, "track": False, "device": "cpu"}
    result = sf.train(torch.nn.Linear(3, 2), data, global_batch=4, **options)
    run = Path(result.run_dir)
    run.joinpath("events.jsonl").write_text("")
    with pytest.raises(UserError):
        sf.train(torch.nn.Linear(3, 2), data, global_batch=6, resume=run, **options)
    assert list(run.glob("checkpoints/update-*"))


def test_parameters_outside_the_model_are_refused() -> None:
    model, temperature = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.zeros(()))
    with pytest.raises(SettingError, match="1 of its parameters are not of the model"):
        sf.Step(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1))


@pytest.mark.parametrize(("global_batch", "micro_batch"), [(4, None), (5, 2)])
def test_batch_norm_never_meets_a_single_example(
    tmp_path: Path, global_batch: int, micro_batch: int | None
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(9, 3), torch.randint(0, 2, (9,)))
    with pytest.raises(SettingError, match=r"^global_batch: .* single example"):
        sf.train(
            model, data, global_batch=global_batch, micro_batch=micro_batch, output=tmp_path, track=False
        )
    assert not list(tmp_path.iterdir())


def test_a_metric_may_not_take_the_name_of_the_loss(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    with pytest.raises(SettingError, match="'loss' is always evaluated"):
        sf.train(
            nn.Linear(3, 2),
            data,
            validation=0.25,
            metrics={"loss": lambda outputs, batch: outputs[:, 0]},
            output=tmp_path,
            track=False,
        )


def test_what_is_not_finite_and_how_many_checkpoints_are_kept_can_be_said(tmp_path: Path) -> None:
    data = [*DATA[:-1], (DATA[-1][0] * float("nan"), DATA[-1][1])]
    settings: dict[str, Any] = {"data": data, "epochs": 2.0, "checkpoint_every": 1, "track": False}
    result = train(output=tmp_path / "skip", checkpoint_keep=3, **settings)
    assert len(list((Path(result.run_dir) / "checkpoints").iterdir())) == 3
    assert result.went_back == []
    back = train(output=tmp_path / "back", non_finite="roll_back", **settings)
    assert len(back.went_back) == 2
    with pytest.raises(TrainingFailed, match="non_finite.policy: stop"):
        train(output=tmp_path / "stop", non_finite="stop", **settings)
    with pytest.raises(TrainingFailed, match="non_finite.limit: 1"):
        train(output=tmp_path / "limit", non_finite_limit=1, **settings)
    with pytest.raises(SettingError, match="^checkpoint_keep: must be a whole number of at least 2, found 1"):
        train(output=tmp_path / "keep", checkpoint_keep=1, **settings)


def test_the_run_tells_its_numerics(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    result = sf.train(
        nn.Linear(3, 2), data, techniques=[sf.BF16()], epochs=1, device="cpu", output=tmp_path, track=False
    )
    assert read_events(Path(result.run_dir) / "events.jsonl")[0]["plan"]["numerics"] == "bf16"


@pytest.mark.slow
def test_a_plan_from_python_is_of_the_module_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    window = (torch.randn(64, 20), torch.randint(3, (64,)))
    answer = sf.plan(model, window, optimizer=sf.SGD(learning_rate=0.1, momentum=0.9), search=False)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert answer.prediction.peak_by_kind["weights"] == weights
    assert answer.prediction.peak_by_kind["optimizer"] == weights, "one momentum a parameter"
    assert answer.fits and answer.choice.micro_batch == 64
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(sf.UserError, match=r"test_from_python\.py:\d+.*if inputs\.sum\(\) > 0"):
        sf.plan(Undecided(), window, search=False)
    measured = sf.plan(Undecided(), window, search=False, probe=True)
    assert measured.prediction.peak_bytes > 0
    assert measured.prediction.confidence["memory"].startswith("measured with 1 and 2 examples")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": "fast"}, "^goal: there is no goal 'fast'"),
        ({"goal": "cheapest"}, "^price: is missing"),
        ({"worth": 0.5}, "^worth: got 0.5"),
        ({"slower": 0.5}, "^slower: got 0.5"),
        ({"updates": 0}, "^updates: must be"),
        ({"micro_batch": 0}, "^micro_batch: must be"),
        ({"devices": 0}, "^devices: got 0, expected at least 1"),
        ({"nodes": 0}, "^nodes: got 0, expected at least 1"),
    ],
)
def test_a_plan_from_python_refuses_settings_by_its_keywords(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        sf.plan(nn.Linear(3, 2), (torch.randn(4, 3), torch.randint(2, (4,))), **settings)


class Undecided(nn.Module):
    """A model that goes by the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(20, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.sum() > 0:
            inputs = -inputs
        return self.head(inputs)


def test_rows_that_are_mappings_are_held_out_by_groups(tmp_path: Path) -> None:
    rows = [
        {"x": torch.randn(2), "labels": torch.tensor(n % 2), "patient": f"p{n % 5}", "day": n // 4}
        for n in range(20)
    ]
    seen: dict[str, set[Any]] = {"group": set(), "time": set()}

    def train(key: str, column: str) -> sf.RunResult:
        def collate(examples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
            if len(examples) == 4:  # of the evaluation
                seen[key] |= {each[column] for each in examples}
            return torch.stack([each["x"] for each in examples]), torch.stack(
                [each["labels"] for each in examples]
            )

        return sf.train(
            nn.Linear(2, 2),
            rows,
            validation={"share": 0.2, key: column},
            collate=collate,
            optimizer=sf.SGD(learning_rate=0.1),
            updates=1,
            global_batch=3,
            evaluate_batch=4,
            output=tmp_path,
            track=False,
        )

    assert train("group", "patient").last["metrics"]
    assert len(seen["group"]) == 1
    train("time", "day")
    assert seen["time"] == {4}
    with pytest.raises(SettingError, match=r"data\.validation\.share: is missing"):
        sf.train(nn.Linear(2, 2), rows, validation={"group": "patient"}, output=tmp_path)
    with pytest.raises(DataError, match="row 0 of the data set is a tuple"):
        sf.train(
            nn.Linear(2, 2),
            [(torch.ones(2), 1)] * 8,
            validation={"share": 0.2, "group": "patient"},
            output=tmp_path,
        )


def test_no_option_of_the_command_is_left_in_what_a_plan_says_in_python() -> None:
    root = Path(planner.__path__[0])
    for path in (root / "plan.py", root / "target.py", *(root / "choice").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for text in ast.walk(tree):
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and id(text) not in docs:
                # a value that is filled in stands behind its option
                said = _in_python(text.value + "NAME" if text.value.endswith(" ") else text.value)
                assert "--" not in said or "--no-plan" in said, f"{path.name}:{text.lineno}: {said}"
