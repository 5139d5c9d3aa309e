"""Folders of models are read by EleutherAI's evaluation harness, which scores with them what was trained, and asks by their chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.generate import load_generator
from snugfit.kit.adapters.adapters import merged
from snugfit.kit.language_models.generation import Generation
from snugfit.models.bundle import save_bundle
from snugfit.techniques.learning.lora import lora_
from tests.unit.tasks.tiny_decoder import decoder_config, letters

TEXTS = ["the cat sat on the mat", "a dog ran"]
TASK = """\
task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
CHATS = """\
task: chats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
_ABSENT = "EleutherAI's evaluation harness is not installed: pip install lm_eval"


@pytest.mark.slow
def test_the_harness_scores_a_merged_folder_as_the_model_with_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason=_ABSENT)
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    tokenizer = letters()
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(decoder_config(tokenizer, 32, heads=4, positions=64)).eval()
    lora_(model, rank=2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    save_bundle(tmp_path / "best", merged(model), {"task": "causal-lm"}, tokenizer)
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "texts.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    harness = HFLM(pretrained=str(tmp_path / "best"), device="cpu", dtype="float32", batch_size=2)
    results = simple_evaluate(
        model=harness,
        tasks=["texts"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    expected, size = 0.0, 0
    for text in TEXTS:
        ids = torch.tensor(
            [[harness.prefix_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]]
        )
        with torch.no_grad():
            scores = model(input_ids=ids).logits.log_softmax(-1)
        expected -= scores[0, :-1].gather(1, ids[0, 1:, None]).sum().item()
        size += len(text.encode())
    found = results["results"]["texts"]["bits_per_byte,none"]
    assert found == pytest.approx(expected / size / torch.log(torch.tensor(2.0)).item(), rel=1e-4)


@pytest.mark.slow
def test_the_harness_asks_an_exported_folder_by_its_chat_template_and_gets_the_answers_that_are_given_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading_here: None
) -> None:
    pytest.importorskip("lm_eval", reason=_ABSENT)
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    tokenizer = letters()
    torch.manual_seed(1)
    model: Any = LlamaForCausalLM(decoder_config(tokenizer, 32, heads=4, positions=64)).eval()
    ends = tokenizer.convert_tokens_to_ids(["<end_of_turn>", tokenizer.eos_token])
    model.generation_config.eos_token_id = ends
    meta = {"task": "instruction", "conversations": "messages", "text_columns": ["text"], "max_length": 64}
    save_bundle(tmp_path / "best", model, meta, tokenizer)
    asked = [{"messages": [{"role": "user", "content": text}]} for text in TEXTS]
    answers = load_generator(tmp_path / "best", Generation(12)).predict(asked)
    export_source(tmp_path / "best", "hf", tmp_path / "out")
    rows = [{"question": text, "answer": each["answer"]} for text, each in zip(TEXTS, answers, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "chats.yaml").write_text(CHATS.format(file=tmp_path / "rows.jsonl"))
    results = simple_evaluate(
        model=HFLM(pretrained=str(tmp_path / "out"), device="cpu", dtype="float32", batch_size=2),
        tasks=["chats"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    given = [each["filtered_resps"][0].strip() for each in results["samples"]["chats"]]
    assert given == [row["answer"] for row in rows] and all(given)
