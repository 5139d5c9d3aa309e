from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from snugfit.errors import MissingExtra, ModelError, SettingError
from snugfit.kit.adapters.adapter_files import _task_type, load_adapter, save_adapter
from snugfit.kit.adapters.adapters import adapted, merge_, merged, unmerge_
from snugfit.kit.adapters.target_modules import targets_of
from snugfit.techniques.learning.ia3 import ia3_
from snugfit.techniques.learning.lora import lora_

IDS = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 3]])

# merging adds B A to the weight before the product instead of after it: a few roundings of float32
MERGED = {"rtol": 1e-4, "atol": 1e-5}


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=24,
        )
    ).eval()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    config.bos_token_id = config.eos_token_id = None
    return GPT2LMHeadModel(config).eval()


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten()).eval()


class Encoder(nn.Module):
    """Layers of torch's own transformer, padded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: Tensor) -> Tensor:
        padding = torch.zeros_like(ids, dtype=torch.bool)
        padding[0, -1] = True
        hidden: Tensor = self.encoder(self.words(ids), src_key_padding_mask=padding)
        return hidden[:, :-1]


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        if isinstance(model, nn.Sequential):
            result: Any = model(torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8))
        else:
            result = model(IDS)
    return result if isinstance(result, Tensor) else result.logits


def trained(model: nn.Module) -> nn.Module:
    """As after some updates: what trains has moved away from where it began."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


MAKERS = [bert, gpt2, convolutions, Encoder]
ADAPTERS: dict[str, Any] = {
    "lora": lambda model: lora_(model, rank=2),
    "dora": lambda model: lora_(model, rank=2, dora=True),
    "rslora": lambda model: lora_(model, rank=2, rslora=True),
    "ia3": ia3_,
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_merged_copy_is_a_plain_model_that_gives_the_same(make: Any, kind: str) -> None:
    base = make()
    model = trained(ADAPTERS[kind](make()))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = merged(model)
    assert type(plain) is type(base)
    assert [(n, p.shape) for n, p in plain.named_parameters()] == [
        (n, p.shape) for n, p in base.named_parameters()
    ]
    assert not adapted(plain) and not hasattr(plain, "peft_config")
    assert not torch.allclose(outputs(model), outputs(base), **MERGED), "the adapters do nothing"
    torch.testing.assert_close(outputs(plain), outputs(model), **MERGED)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_merging_in_place_is_undone_bit_for_bit(make: Any, kind: str) -> None:
    model = trained(ADAPTERS[kind](make()))
    before, reference = copy.deepcopy(model.state_dict()), outputs(model)
    originals = merge_(model)
    torch.testing.assert_close(outputs(model), reference, **MERGED)
    with pytest.raises(SettingError, match="merged already"):
        merge_(model)
    unmerge_(model, originals)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(outputs(model), reference)
    with pytest.raises(SettingError, match="not merged"):
        unmerge_(model, originals)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_saved_adapter_is_loaded_onto_the_base(make: Any, kind: str, tmp_path: Path) -> None:
    model = trained(ADAPTERS[kind](make()))
    save_adapter(model, tmp_path / "adapter")
    loaded = load_adapter(make(), tmp_path / "adapter").eval()
    assert torch.equal(outputs(loaded), outputs(model))
    again = load_adapter(ADAPTERS[kind](make()), tmp_path / "adapter").eval()
    assert torch.equal(outputs(again), outputs(model))
    trains = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trains == {name for name, parameter in loaded.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("make", [bert, gpt2, convolutions])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_peft_itself_loads_a_saved_adapter(make: Any, kind: str, tmp_path: Path) -> None:
    model = trained(ADAPTERS[kind](make()))
    save_adapter(model, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(make(), str(tmp_path / "adapter")).eval()
    assert torch.equal(outputs(loaded.get_base_model()), outputs(model))


@pytest.mark.parametrize(
    ("make", "auto"), [(bert, "AutoPeftModelForSequenceClassification"), (gpt2, "AutoPeftModelForCausalLM")]
)
def test_peft_s_auto_classes_load_a_saved_adapter_by_its_folder_alone(
    make: Any, auto: str, tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path / "base")
    base = type(make()).from_pretrained(tmp_path / "base").eval()
    model = trained(lora_(base, rank=2))
    save_adapter(model, tmp_path / "adapter")
    loaded = getattr(peft, auto).from_pretrained(str(tmp_path / "adapter")).eval()
    assert torch.equal(outputs(loaded.get_base_model()), outputs(model))


def test_an_adapter_of_a_module_of_ones_own_has_no_task() -> None:
    assert _task_type(convolutions()) is None and _task_type(bert()) == "SEQ_CLS"


def test_a_saved_adapter_holds_the_new_head_and_nothing_of_the_base(tmp_path: Path) -> None:
    save_adapter(lora_(bert(), rank=2, targets=["query"]), tmp_path)
    names = {
        name.removeprefix("base_model.model.") for name in load_file(tmp_path / "adapter_model.safetensors")
    }
    layer = "bert.encoder.layer.{}.attention.self.query.lora_{}.weight"
    assert names == {
        "classifier.weight",
        "classifier.bias",
        *(layer.format(number, letter) for number in (0, 1) for letter in "AB"),
    }
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier"] and config["r"] == 2


def test_an_empty_adapter_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no adapters"):
        save_adapter(nn.Linear(2, 2), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    for function in (merged, merge_):
        with pytest.raises(SettingError, match="has no adapters"):
            function(nn.Linear(2, 2))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    save_adapter(lora_(bert(), rank=2), tmp_path / "of_bert")
    with pytest.raises(ModelError, match="of another model"):
        load_adapter(gpt2(), tmp_path / "of_bert")
    with pytest.raises(ModelError, match="of another model.*lora_"):
        load_adapter(lora_(bert(), rank=4), tmp_path / "of_bert")
    with pytest.raises(ModelError, match="no adapter_config.json"):
        load_adapter(bert(), tmp_path)


def test_targets_are_by_default_all_layers_but_heads_and_what_cannot_be_adapted() -> None:
    assert targets_of(gpt2(), (), (), "lora") == [
        f"transformer.h.0.{layer}" for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    assert "classifier" not in targets_of(bert(), (), ["classifier"], "lora")
    # the projection of nn.MultiheadAttention is read, never called
    found = targets_of(Encoder(), (), (), "lora")
    assert found == [f"encoder.layers.{layer}.linear{which}" for layer in (0, 1) for which in (1, 2)]
    grouped = nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Linear(1, 1))
    assert targets_of(grouped, (), (), "lora") == ["1"]


class Tied(nn.Module):
    """One layer at two places, and one that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.free = nn.Linear(2, 2), nn.Linear(2, 2)
        self.again = nn.Sequential(self.first)
        self.words, self.head = nn.Embedding(2, 2), nn.Linear(2, 2)
        self.head.weight = self.words.weight


@pytest.mark.parametrize(
    ("make", "patterns", "words"),
    [
        (bert, ["q_proj"], r"'q_proj' matches no module .* has: query, key, value, dense, classifier\."),
        (bert, ["qurey"], r"lora\.targets: 'qurey' matches no module of the model\. Did you mean 'query'\?"),
        (
            bert,
            ["embeddings"],
            r"'embeddings' matches 'bert\.embeddings', a BertEmbeddings.*'embeddings\.\*'",
        ),
        (gpt2, ["lm_*"], "'lm_head' shares a weight"),
        (gpt2, ["lm_head"], "'lm_head' shares a weight .'transformer.wte.weight'.*Leave it out"),
        (Encoder, ["self_attn"], "reads its weights without calling"),
        (Encoder, ["out_proj"], "reads its weights without calling"),
        (Tied, ["first"], "stands at several places"),
        (Tied, ["words"], "shares a weight"),
        (nn.ReLU, [], "no linear layer or convolution"),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(make: Any, patterns: list[str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        lora_(make(), targets=patterns)


def test_a_pattern_takes_the_layers_among_what_it_matches() -> None:
    assert targets_of(bert(), ["embeddings.*"], (), "lora") == [
        f"bert.embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type")
    ]


def test_what_is_shared_is_left_out_by_default() -> None:
    assert targets_of(Tied(), (), (), "lora") == ["free"]


def test_a_head_that_shares_its_weight_with_the_rest_is_not_trained_in_full() -> None:
    with pytest.raises(
        SettingError, match=r"lora\.head: a weight of lm_head is 'transformer\.wte\.weight' too"
    ):
        lora_(gpt2(), head=["lm_head"])
    with pytest.raises(SettingError, match=r"'classifier' is trained in full by lora\.head already"):
        lora_(bert(), targets=["classifier"])


def test_a_second_set_of_adapters_is_refused() -> None:
    with pytest.raises(SettingError, match="adapters already"):
        ia3_(lora_(bert()))


def test_only_the_chosen_layers_are_adapted_and_none_whose_name_ends_alike() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(2, 2), "b": nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)})}
    )
    model["b"]["a"].weight = model["b"]["c"].weight  # left out
    assert list(adapted(lora_(model))) == ["a"]


def test_adapters_of_half_precision_weights_are_kept_in_float32() -> None:
    model = lora_(bert().bfloat16())
    dtypes = {p.dtype for n, p in model.named_parameters() if "lora_" in n}
    assert dtypes == {torch.float32}
    assert {p.dtype for p in merged(model).parameters()} == {torch.bfloat16}


def test_without_peft_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for function in (lora_, ia3_):
        with pytest.raises(MissingExtra, match=r"pip install 'snugfit\[adapters\]'"):
            function(bert())


def test_merging_a_copy_copies_each_weight_once() -> None:
    model = trained(lora_(nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))), rank=2))
    with Clones((8, 8)) as clones:
        merged(model)
    assert clones.count == 3


class Clones(TorchDispatchMode):
    """Counts the copies that are made of tensors of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten.clone.default and args[0].shape == self.shape
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{"alpha": 64.0}, {"rslora": True}, {"dora": True}], ids=str)
def test_adapters_of_another_scale_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    trained = lora_(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), rank=2, alpha=32.0, targets=["0"])
    save_adapter(trained, tmp_path / "adapter")
    other = lora_(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), 2, **{"alpha": 32.0, **settings}, targets=["0"]
    )
    with pytest.raises(ModelError, match=r"adapter: .*(was trained with|is of another model)"):
        load_adapter(other, str(tmp_path / "adapter"))
    load_adapter(trained, str(tmp_path / "adapter"))


def test_adapters_bring_no_line_of_a_library_about_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # peft imports bitsandbytes, which on processors with bf16 misses a kernel of the hub that no adapter asks for
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "callHandlers", said.append)
    inject = peft.inject_adapter_in_model

    def importing(*args: Any, **kwargs: Any) -> nn.Module:
        logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community")
        return inject(*args, **kwargs)

    monkeypatch.setattr(peft, "inject_adapter_in_model", importing)
    lora_(nn.Sequential(nn.Linear(4, 2)), rank=2)
    assert not said
