"""Adapters alone, loaded by peft on the base that they were trained on, whole or in four bits; and merged models in fewer bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.predictor import load_predictor
from snugfit.errors import ModelError
from snugfit.kit.adapters.adapters import adapted, merged
from snugfit.models.bundle import save_bundle
from snugfit.techniques.learning.lora import LoRA
from snugfit.tracking.spool import Spool
from tests.unit.deliver.export.models import language_model, of_bytes, questions

pytest.importorskip("peft")
pytestmark = pytest.mark.slow


def with_adapter(folder: Path, *techniques: Any, new_rows: int = 0, **recipe: Any) -> tuple[Path, str]:
    """A run of a model whose adapters are not zero, beside its base, which has so many rows of its embeddings less."""
    tokenizer = of_bytes()
    model = language_model("qwen2", tokenizer)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    known = model.config.vocab_size
    if new_rows:
        model.resize_token_embeddings(known + new_rows, mean_resizing=False)
    tokens = tuple(range(known, known + new_rows))
    for technique in (*techniques, LoRA(rank=4, alpha=8, tokens=tokens)):
        model = technique.prepare(model)
    torch.manual_seed(1)
    for layer in adapted(model).values():
        if hasattr(layer, "lora_B"):
            torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.2)
    meta = {
        "task": "instruction",
        "conversations": "messages",
        "text_columns": ["text"],
        "completion_column": "completion",
        "max_length": 128,
        "numerics": "fp32",
        "update": 40,
        "metrics": {"loss": 1.25, "perplexity": 3.49},
    }
    run = folder / "run"
    run.mkdir()
    save_bundle(run / "best", merged(model), meta, tokenizer, adapters_of=model)
    rows = questions(folder)
    with Spool(run / "events.jsonl") as spool:
        spool.append(
            "run",
            name="answers",
            recipe={"model": str(folder / "base"), "data": {"train": rows, "validation": None}, **recipe},
            data={"train": 4, "validation": 0, "unit": "rows"},
            inputs=[{"context": "train", "source": rows, "sha256": "ab" * 32}],
        )
    return run, rows


def test_peft_gives_with_the_adapter_what_the_merged_model_was_scored_with(
    tmp_path: Path, reading_here: None
) -> None:
    run, _ = with_adapter(tmp_path)
    result = export_source(run, "adapter", tmp_path / "out")
    assert result["compared_on"] == "4 rows" and result["compared"][0]["difference"] < 1e-5
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= set(result["files"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "PeftModel.from_pretrained" in card and "ab" * 32 in card
    for name in ("README.md", "adapter_config.json"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text(), "the place on this machine"
    stops = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == list(load_predictor(run / "best", "cpu").inference.stops)
    assert "GenerationConfig.from_pretrained" in card
    assert 'from_pretrained("./base")' in card and "`./base` stands for a local folder" in card


def test_rows_of_new_tokens_are_made_before_peft_reads_them(tmp_path: Path, reading_here: None) -> None:
    run, _ = with_adapter(tmp_path, new_rows=2)
    assert export_source(run, "adapter", tmp_path / "out")["compared"][0]["difference"] < 1e-5
    usage = (tmp_path / "out" / "README.md").read_text()
    grown, read = (
        usage.index("base.resize_token_embeddings("),
        usage.index("model = PeftModel.from_pretrained"),
    )
    assert grown < read


def test_a_base_in_four_bits_stays_so_beside_its_adapter_and_is_merged_or_quantised_anew_where_that_is_asked_for(
    tmp_path: Path, reading_here: None
) -> None:
    pytest.importorskip("bitsandbytes")
    from snugfit.techniques.numerics.nf4 import NF4

    run, rows = with_adapter(tmp_path, NF4(), techniques=[{"nf4": {"double": True}}, {"lora": {}}])
    result = export_source(run, "adapter", tmp_path / "adapter")
    (compared,) = result["compared"]
    assert compared["difference"] < 0.02
    # what is left is what kernels round that compute in four bits: with the base written whole, peft gives what was scored
    assert compared["rounding"] == pytest.approx(compared["difference"], abs=1e-5)
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "It was trained on a base in 4 bits." in card and "base.dequantize()" in card
    result = export_source(run, "hf", tmp_path / "merged")
    assert result["compared"][0]["difference"] < 1e-5
    beside = json.loads((tmp_path / "merged" / "adapter" / "adapter_config.json").read_text())
    assert beside["base_model_name_or_path"] == "./base"
    result = export_source(run, "hf", tmp_path / "anew", quantize="int8", rows=rows)
    (compared,) = result["compared"]
    assert 0 < compared["lost_nats"] < 0.1 and compared["difference"] > 1e-3
    assert "quantising loses" in (tmp_path / "anew" / "README.md").read_text()
    size = {
        name: path.stat().st_size
        for name in ("merged", "anew")
        for path in [tmp_path / name / "model.safetensors"]
    }
    assert size["anew"] < size["merged"]


def test_a_base_with_modules_left_whole_is_read_back_with_them_whole(
    tmp_path: Path, reading_here: None
) -> None:
    pytest.importorskip("bitsandbytes")
    from snugfit.techniques.numerics.nf4 import NF4

    skipped = "*.down_proj"
    run, _ = with_adapter(
        tmp_path, NF4(skip=(skipped,)), techniques=[{"nf4": {"skip": [skipped]}}, {"lora": {}}]
    )
    compared = export_source(run, "adapter", tmp_path / "out")["compared"]
    assert compared[0]["difference"] < 0.02
    card = (tmp_path / "out" / "README.md").read_text()
    names = "model[.]layers[.]0[.]mlp[.]down_proj|model[.]layers[.]1[.]mlp[.]down_proj|lm_head"
    assert f"llm_int8_skip_modules=['(?:{names})$']" in card


def test_an_adapter_of_another_base_is_not_delivered(tmp_path: Path, reading_here: None) -> None:
    run, _ = with_adapter(tmp_path)
    torch.manual_seed(5)
    other = language_model("qwen2", of_bytes())
    torch.nn.init.normal_(other.lm_head.weight)
    other.save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="out: was not delivered: read back by peft .*, its logits differ"):
        export_source(run, "adapter", tmp_path / "out")


def test_a_base_without_stored_weights_has_no_adapter_to_export(tmp_path: Path) -> None:
    run, _ = with_adapter(tmp_path, from_scratch=True)
    with pytest.raises(ModelError, match="with weights drawn anew, which are in no file"):
        export_source(run, "adapter", tmp_path / "out")
