from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.kit import mapped_tensors
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.numerics.nf4 import NF4, NF4Format, nf4_
from tests.oracles import nf4 as oracle
from tests.unit.run.training.runs import finish, make_training
from tests.unit.techniques.quantised_runs import (
    DECODERS,
    IDS,
    adapted_step,
    adapter_under_plain_peft,
    bytes_of,
    folder_of,
    gpt2,
    llama,
    loaded_like_prepared,
    losses_of,
    stopped_and_resumed,
    wide_llama,
)

# rows that end within a block and an odd number among them: bitsandbytes alone takes the wrong scales for some
SHAPES = [(1, 1), (8, 16), (4, 96), (5, 7), (16, 24), (48, 64), (3, 130)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("double", [False, True])
def test_the_weight_is_that_of_a_loop_over_the_papers_table(shape: tuple[int, int], double: bool) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    form = NF4Format(double)
    packed = form.pack(weight)
    whole = form.unpack(packed, shape, torch.float32)
    assert torch.equal(whole, oracle.rounded(weight, double))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert torch.equal(form.unpack(packed, shape, dtype), whole.to(dtype))


def test_the_levels_are_the_papers() -> None:
    block = torch.tensor(oracle.LEVELS).repeat(4).view(1, 64)
    form = NF4Format(double=False)
    assert torch.equal(form.unpack(form.pack(3 * block), (1, 64), torch.float32), 3 * block)


def test_quantised_scales_are_half_a_step_away_at_most() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    packed, plain = NF4Format().pack(weight), NF4Format(double=False).pack(weight)
    assert torch.equal(packed["packed"], plain["packed"])
    levels = torch.tensor(oracle.LEVELS)
    assert len(levels.unique()) == 16
    one, other = (
        form.unpack(k, (64, 512), torch.float32)
        for form, k in ((NF4Format(), packed), (NF4Format(False), plain))
    )
    scales = plain["absmax"]
    spread = (scales - scales.mean()).abs().max()
    assert (one - other).abs().max() <= spread * 0.015  # the widest gap of the 256 levels is 0.014


def test_a_block_of_zeros_stays_one() -> None:
    for form in (NF4Format(), NF4Format(double=False)):
        assert not form.unpack(form.pack(torch.zeros(2, 64)), (2, 64), torch.float32).any()


def test_a_weight_takes_four_bits_and_an_eighth() -> None:
    count = 1024 * 1024
    layers = {
        double: nf4_(nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 2)), double)[0]
        for double in (True, False)
    }
    assert bytes_of(layers[False]) == count / 2 + 4 * count / 64
    assert bytes_of(layers[True]) == count / 2 + count / 64 + 4 * count / 64 / 256 + 4
    assert 8 * bytes_of(layers[True]) / count == pytest.approx(4.127, abs=0.001)


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize("double", [True, False])
def test_what_is_loaded_in_4_bits_is_what_is_quantised_after_loading(make, double, tmp_path) -> None:
    loaded_like_prepared(NF4(double), folder_of(make, tmp_path))


@pytest.mark.parametrize("make", [wide_llama, gpt2])  # theirs is wrong where rows end within a block
def test_the_adapter_alone_gives_the_same_outputs_on_a_base_of_plain_transformers_and_peft(
    make, tmp_path
) -> None:
    config = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    ours, theirs = adapter_under_plain_peft(NF4(), folder_of(make, tmp_path), tmp_path, **config)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # that it resumes is a law, tried on a smaller model
def test_a_run_stopped_and_resumed_is_the_run_that_was_not_stopped(tmp_path) -> None:
    stopped_and_resumed(NF4(), tmp_path)


def test_what_a_run_delivers_is_made_in_files_of_its_folder(tmp_path, monkeypatch) -> None:
    written = []
    monkeypatch.setattr(mapped_tensors, "_SMALL", 1024)
    monkeypatch.setattr(
        mapped_tensors, "in_file", lambda tensor, folder: (written.append((tensor.shape, folder)), tensor)[1]
    )
    rows = [{"input_ids": row, "attention_mask": torch.ones(16).long(), "labels": row} for row in IDS]
    techniques = (AdamW(learning_rate=1e-2), LoRA(rank=4), NF4())
    training = make_training(
        tmp_path, model=llama(), train=rows, validation=rows, techniques=techniques, loss="causal_lm"
    )
    finish(training)
    assert {folder for _, folder in written} == {training.folder.path}
    assert {shape for shape, _ in written} == {(64, 64), (32, 64), (96, 64), (64, 96)}, "each projection"


def test_adapters_on_it_learn_as_on_the_whole_base(tmp_path) -> None:
    """On random weights; on a pretrained encoder see the page."""
    folder = folder_of(llama, tmp_path)
    quantised, whole = (losses_of(adapted_step(techniques, folder), 10) for techniques in ([NF4()], []))
    assert whole[-1] < whole[0] - 0.3
    assert quantised[-1] == pytest.approx(whole[-1], abs=0.1 * (whole[0] - whole[-1]))
    assert quantised != whole


@pytest.mark.parametrize("config", [{"bnb_4bit_quant_type": "fp4"}, {"bnb_4bit_use_double_quant": False}])
def test_a_model_that_was_loaded_in_another_format_of_4_bits_is_refused(config, tmp_path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    asked = BitsAndBytesConfig(
        **{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, **config}
    )
    model = AutoModelForCausalLM.from_pretrained(folder_of(llama, tmp_path), quantization_config=asked)
    with pytest.raises(
        SettingError, match=r"nf4: 'model.layers.0.self_attn.q_proj' was loaded as .*Load the model whole"
    ):
        NF4().prepare(model)


PEAKS = """
import sys, threading, time
import accelerate, transformers.quantizers.auto
from transformers import LlamaForCausalLM
from snugfit.kit.quantized.quantize import bitsandbytes_ops
from snugfit.models.huggingface import load_causal_lm
from snugfit.techniques.numerics.nf4 import NF4

def resident():
    # what is not a page of the file, which the system takes back whenever it likes
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

def watch():
    global peak
    while watching:
        peak = max(peak, resident())
        time.sleep(0.001)

bitsandbytes_ops()
for techniques in ([NF4()], []):
    before = peak = resident()
    watching = True
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    model = load_causal_lm(sys.argv[1], techniques=techniques).model
    for technique in techniques:
        model = technique.prepare(model)
    watching = False
    thread.join()
    print(max(peak, resident()) - before)
    del model
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_model_loaded_in_4_bits_never_stands_in_memory_whole(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config)
    whole = bytes_of(model)
    model.bfloat16().save_pretrained(tmp_path, max_shard_size="10MB")
    assert len(list(tmp_path.glob("*.safetensors"))) >= 5
    del model

    command = [sys.executable, "-c", PEAKS, str(tmp_path)]
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc gives back at once what is freed
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=settings).stdout
    quantised, plain = map(int, printed.split()[-2:])
    assert plain > 0.7 * whole  # some of what the other left is used again
    # an eighth is kept; besides that a few layers are on their way
    assert quantised < 0.6 * whole
