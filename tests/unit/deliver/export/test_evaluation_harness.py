"""The folder of a model whose adapters are merged is read by EleutherAI's evaluation harness, which scores with it what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from snugfit.kit.adapters.adapters import merged
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


@pytest.mark.slow
def test_the_harness_scores_a_merged_folder_as_the_model_with_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
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
