"""Plans of recipes whose data or whose tokenizer is not there yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CodeGenConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from snugfit.data.assumed import assumed_text
from snugfit.errors import DataError, SettingError
from snugfit.planner.answers.answer import Answer
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.target import Target
from snugfit.recipe import load_recipe
from snugfit.run.plans.recipe_plan import plan_recipe

RECIPE = """\
task: causal-lm
model: llama
data: {train: new.txt, validation: 0.1, max_length: 32}
train: {epochs: 2, global_batch: 4}
optimizer: {adamw: {learning_rate: 1.0e-3}}
schedule: {linear: {warmup: 200}}
techniques: []
plan: {device: cpu}
track: {mlflow: false}
"""


class Here:
    """A worker that is this process: on a CPU nothing is pretended."""

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float,
        way_out: str = "",
        folder: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        return function(*arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    config.save_pretrained(tmp_path / "llama")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def planned(folder: Path, *changes: str) -> Answer:
    target = Target(device="cpu", memory=2**34, search=False)
    return plan_recipe(load_recipe(folder / "recipe.yaml", changes), target, Here())  # type: ignore[arg-type]


def add_tokenizer(folder: Path) -> None:
    words = {"<end>": 0, "<unknown>": 1, **{f"w{number}": number + 2 for number in range(30)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>"
    ).save_pretrained(folder / "llama")


def test_assumed_examples_are_full_and_enough_for_ten_thousand_updates():
    data = assumed_text(5, 8, classes=True)
    assert data[-1] == {"input_ids": [0] * 5, "attention_mask": [1] * 5, "labels": 0}
    assert len(data) == 80_000
    assert len(data[10:]) == 79_990
    with pytest.raises(IndexError):
        data[80_000]


def test_a_missing_file_is_planned_with_full_examples_and_said(folder):
    answer = planned(folder)
    found = answer.prediction
    said = "every example is taken to have 32 tokens, as data.train (new.txt) is not there"
    assert found.confidence["data"] == f"upper bound: {said}"
    assert any(said in sentence and "give train.updates" in sentence for sentence in answer.why)
    assert found.tokens_per_second == pytest.approx(4 * 32 / found.seconds_per_update)
    assert found.seconds_total is None
    assert answer.about["total_updates"] is None


def test_a_given_number_of_updates_is_a_known_time(folder):
    answer = planned(folder, "train.updates=300")
    assert answer.prediction.seconds_total == pytest.approx(300 * answer.prediction.seconds_per_update)
    assert not any("train.updates" in sentence for sentence in answer.why)


@pytest.mark.slow
def test_what_is_assumed_needs_what_full_examples_need(folder):
    assumed = planned(folder)
    add_tokenizer(folder)
    (folder / "new.txt").write_text("w3 " * (32 * 40))
    seen = planned(folder, "schedule=null")
    assert "data" not in seen.prediction.confidence
    assert assumed.prediction.peak_by_kind == seen.prediction.peak_by_kind
    assert assumed.prediction.flops_per_update == seen.prediction.flops_per_update


def test_a_folder_without_a_tokenizer_is_said_by_name(folder):
    (folder / "new.txt").write_text("w3 " * 2000)
    assert "as model (llama) has no tokenizer" in planned(folder).prediction.confidence["data"]


def test_a_configuration_without_a_padding_token_is_planned(folder):
    config = CodeGenConfig(vocab_size=40, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    assert not hasattr(config, "pad_token_id")
    config.save_pretrained(folder / "codegen")
    assert planned(folder, "model=codegen").prediction.tokens_per_second


def test_a_classifier_is_taken_to_have_two_classes(folder):
    changes = ("task=text-classification", "data.train=new.csv", "schedule=null")
    answer = planned(folder, *changes)
    assert "32 tokens of one of two classes" in answer.prediction.confidence["data"]
    # two layers of 3 projections in the MLP, 4 of attention and 2 norms; the last norm, embeddings, the head for two classes
    body = 2 * (3 * 16 * 32 + 4 * 16 * 16 + 2 * 16) + 16 + 40 * 16 + 2 * 16
    assert answer.about["parameters"]["total"] == body


def test_a_missing_validation_file_and_a_wrong_column_stay_errors(folder):
    add_tokenizer(folder)
    (folder / "rows.csv").write_text("text,label\nw1 w2,a\nw2 w3,b\n")
    with pytest.raises(DataError, match=r"data\.text.*body"):
        planned(folder, "data.train=rows.csv", "data.text=[body]")
    with pytest.raises(DataError, match=r"data\.validation: there is no file .*held\.csv"):
        planned(folder, "data.train=rows.csv", "data.validation=held.csv")


def test_examples_longer_than_the_models_positions_stay_an_error(folder):
    config = json.loads((folder / "llama" / "config.json").read_text())
    gpt2 = {
        "model_type": "gpt2",
        "n_positions": 16,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 40,
    }
    assert config["model_type"] == "llama"
    (folder / "llama" / "config.json").write_text(json.dumps(gpt2))
    with pytest.raises(
        SettingError, match=r"data\.max_length: 32 is more than the 16 tokens that this model can read"
    ):
        planned(folder)


@pytest.mark.slow
def test_a_head_that_is_tied_to_its_embeddings_is_counted_once(folder):
    totals = {}
    for tied in (False, True):
        path = folder / "llama" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": tied}))
        found = planned(folder)
        totals[tied] = found.about["parameters"]["total"]
        assert found.prediction.peak_by_kind["weights"] >= 4 * totals[tied]
    assert totals[False] - totals[True] == 40 * 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], marks=pytest.mark.release),
        ["plan.numerics=pure_bf16", "techniques=[optimizer_in_backward]"],
    ],
)
def test_states_in_pages_are_planned_without_a_gpu_in_the_memory_of_the_host(folder, more):
    """Moments of 8 bits of a table of a million numbers, which an update has come to a device that is full, and leave it."""
    path = folder / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 65_536}))
    beside, moments = 520 * 2**20, 2 * 2 * 65_536 * 16  # of a process; of the embeddings and of the head
    found = {}
    for paged, memory in ((False, 2**30), (True, 2**30), (True, beside + moments)):
        optimizer = json.dumps({"adamw_8bit": {"learning_rate": 1e-3, "paged": paged}})
        recipe = load_recipe(folder / "recipe.yaml", [f"optimizer={optimizer}", *more])
        target = Target(device="rtx4090", memory=memory, search=False)
        found[paged, memory] = plan_recipe(recipe, target).prediction
    plain, paged, moved = found.values()
    for prediction in (paged, moved):
        assert plain.peak_by_kind["optimizer"] - prediction.peak_by_kind["optimizer"] == moments
    assert paged.seconds_per_update == pytest.approx(plain.seconds_per_update, rel=1e-3)
    seconds = 2 * moments / find_device("rtx4090").host_link.bandwidth
    assert moved.seconds_per_update - paged.seconds_per_update == pytest.approx(seconds)


@pytest.mark.slow
def test_weights_that_come_in_another_format_are_not_whole_on_the_device_at_first(folder):
    """A Llama of 116 million weights: 446 MiB in float32, half of it in bf16. The device has to have 520 MiB besides."""
    path = folder / "llama" / "config.json"
    larger = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
    }
    config = {"num_key_value_heads": 8, "vocab_size": 32_000, "head_dim": 128, **larger}
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    recipe = load_recipe(folder / "recipe.yaml", ["techniques=[lora]", "plan.numerics=pure_bf16"])
    answer = plan_recipe(recipe, Target(device="rtx4090", memory=2**30, search=False))
    total = answer.about["parameters"]["total"]
    assert answer.prediction.reserved_bytes < 520 * 2**20 + 4 * total, "never whole in float32"


@pytest.mark.parametrize(("loss", "passes"), [("dpo", 6), ("kto", 4)])
def test_preferences_are_planned_as_two_sequences_a_row(folder: Path, loss: str, passes: int) -> None:
    text = planned(folder)
    pairs = planned(folder, "task=preference", "data.train=new.jsonl", f"loss={loss}")
    assert "every example is taken to have 32 tokens, as data.train (new.jsonl) is not there" in str(pairs)
    # a forward and a backward of both sequences; of kto a forward alone of the second one
    assert pairs.prediction.flops_per_update == pytest.approx(
        passes / 3 * text.prediction.flops_per_update, rel=0.02
    )


@pytest.mark.slow
def test_qlora_of_seventy_billion_parameters_is_planned_from_its_configuration(tmp_path):
    LlamaConfig(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    ).save_pretrained(tmp_path / "llama")
    recipe = load_recipe(
        Path(__file__).parents[4] / "examples" / "instruct_qlora.yaml",
        [f"model={tmp_path / 'llama'}", "train.global_batch=4", f"data.train={tmp_path / 'pairs.jsonl'}"],
    )
    answer = plan_recipe(recipe, Target(device="rtx3090", search=False))
    assert not answer.fits
    linear = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672)
    adapters = 80 * 16 * (2 * 2 * 8192 + 2 * (8192 + 1024) + 3 * (8192 + 28_672))
    plain = 128_256 * 8192 * 2 + (2 * 80 + 1) * 8192
    # half a byte each, a byte for the scale of 64 of them, a float32 for the scale of 256 scales; embeddings, head, norms and
    # adapters in float32
    weights = linear // 2 + linear // 64 + linear // 64 // 256 * 4 + 4 * (plain + adapters)
    assert answer.prediction.peak_by_kind["weights"] == pytest.approx(weights, rel=1e-4)
    assert answer.prediction.peak_by_kind["optimizer"] == pytest.approx(8 * adapters, rel=1e-3)
    assert answer.about["parameters"]["total"] == linear + plain


@pytest.mark.slow
@pytest.mark.parametrize("data", [False, True], ids=["assumed", "there"])
def test_a_named_teacher_is_counted_by_its_configuration_alone(folder: Path, data: bool):
    """It has no weights on disk; its features are of another width."""
    teacher = LlamaConfig(
        vocab_size=40, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2
    )
    teacher.save_pretrained(folder / "large")
    if data:
        (folder / "new.txt").write_text("w1 w2 w3 " * 400)
        add_tokenizer(folder)
    of = "features: {model.layers.1: model.layers.2}, projections: {model.layers.1: [16, 64]}"
    taught = planned(folder, f"techniques=[{{distillation: {{teacher: large, {of}}}}}]")
    alone = planned(folder)
    weights = sum(each.nbytes for each in LlamaForCausalLM(teacher).parameters())
    more = taught.prediction.peak_by_kind["averages"] - alone.prediction.peak_by_kind.get("averages", 0)
    assert more == pytest.approx(weights, rel=0.01)
    projection = 4 * (16 * 64 + 64)
    assert taught.prediction.peak_by_kind["weights"] - alone.prediction.peak_by_kind["weights"] == projection
