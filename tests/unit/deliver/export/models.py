"""Tiny models with tokenizers that are trained on the spot, stored as a run stores its best."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.deliver.export.gguf_tokenizer import SPLITS
from snugfit.models.bundle import save_bundle

TEXT = """\
A bird in the hand is worth two in the bush. Actions speak louder than words. All that glitters is not gold, in 1596 or 2024.
A stitch in time saves nine. Better late than never: birds of a feather flock together, and practice makes perfect!
Don't count your chickens before they hatch. Every cloud has a silver lining; we'll see. Übung macht den Meister, naïve café.
"""
QUESTIONS = ["Who flocks together?", "What saves nine, in 2024?", "Don't you count?", "Übung…  what?"]
TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MARKS = ["<start_of_turn>", "<end_of_turn>"]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def beginning_with_bos(tokenizer: Any) -> Any:
    """The tokenizer with a mark before every text, which its template writes too."""
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    return tokenizer


def of_bytes(split: str = "qwen2") -> PreTrainedTokenizerFast:
    """A byte-level BPE that splits texts as llama.cpp names it."""
    tokenizer = Tokenizer(models.BPE())
    expression = {name: text for text, name in SPLITS.items()}.get(split)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=expression is None)
    tokenizer.pre_tokenizer = (
        whole
        if expression is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), whole])
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        tokenizer, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    )


def of_pieces(like: str = "gemma") -> PreTrainedTokenizerFast:
    """A BPE of pieces with spaces as marks that falls back to bytes, as Gemma's is; Llama 2's begins each text with a space."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if like == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif like == "llama 2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    return _trained(
        tokenizer,
        trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *bytes_], show_progress=False),
    )


def _trained(tokenizer: Tokenizer, trainer: Any) -> PreTrainedTokenizerFast:
    tokenizer.train_from_iterator([TEXT], trainer)
    whole = json.loads(tokenizer.to_str())  # bytes are pieces of the model and no special tokens
    whole["added_tokens"] = [each for each in whole["added_tokens"] if not each["content"].startswith("<0x")]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(whole)),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=128,
    )
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    made.chat_template = TEMPLATE
    return made


_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
}
_WIDE = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8}
SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama 3.1": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, _WIDE),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {**_WIDE, "num_hidden_layers": 7}),
}


def language_model(shape: str, tokenizer: Any) -> Any:
    """A model with drawn weights, norms and biases too, so that none of them can be left out unseen."""
    config, kind, more = SHAPES[shape]
    torch.manual_seed(0)
    model = kind(config(vocab_size=len(tokenizer) + 3, **{**_SHAPE, **more})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(parameter, mean=0.0 if "gemma" in shape or "bias" in name else 1.0, std=0.3)
    return model


def stored(folder: Path, shape: str, tokenizer: Any, **meta: Any) -> tuple[Path, str]:
    """The folder of a model that was trained on conversations, and a file of such."""
    model = language_model(shape, tokenizer)
    about = {
        "task": "instruction",
        "conversations": "messages",
        "text_columns": ["text"],
        "completion_column": "completion",
        "max_length": 128,
        "numerics": "fp32",
    }
    save_bundle(folder / "best", model, {**about, **meta}, tokenizer)
    return folder / "best", questions(folder)


def questions(folder: Path) -> str:
    """A file of conversations that end with a question."""
    path = folder / "questions.jsonl"
    lines = [json.dumps({"messages": [{"role": "user", "content": each}]}) for each in QUESTIONS]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "book", "a", "the"]


def of_words() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words that frames texts, and tells the second of a pair by its type."""
    pieces = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=24,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def encoder_of_words(labels: list[str], width: int = 16) -> BertForSequenceClassification:
    """An encoder with drawn weights and a head for the labels."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=24,
        initializer_range=0.3,
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
    )
    return BertForSequenceClassification(config).eval()


def text_classifier(folder: Path, pairs: bool = False, width: int = 16) -> tuple[Path, str]:
    """The folder of a classifier of texts, or of pairs, and a file of rows: one longer than it was trained on, one of two columns."""
    labels = ["neg", "neutral", "pos"]
    columns = (
        {"text_columns": ["title"], "pair_column": "text"} if pairs else {"text_columns": ["title", "text"]}
    )
    meta = {
        "task": "text-classification",
        "labels": labels,
        **columns,
        "label_column": "label",
        "max_length": 12,
        "numerics": "fp32",
        "metrics": {"accuracy": 0.75, "loss": 0.5},
        "update": 30,
    }
    save_bundle(folder / "best", encoder_of_words(labels, width), meta, of_words())
    return folder / "best", _rows_of_words(folder)


def text_labeller(folder: Path) -> tuple[Path, str]:
    """The folder of a model that gives texts any number of three labels, and a file of rows."""
    labels = ["film", "praise", "blame"]
    meta = {
        "task": "multi-label-classification",
        "labels": labels,
        "text_columns": ["title", "text"],
        "pair_column": None,
        "label_column": "labels",
        "label_columns": [],
        "separator": ";",
        "threshold": 0.45,
        "max_length": 12,
        "numerics": "fp32",
    }
    model = encoder_of_words(labels)
    model.config.problem_type = "multi_label_classification"
    save_bundle(folder / "best", model, meta, of_words())
    return folder / "best", _rows_of_words(folder)


def text_regressor(folder: Path, pairs: bool = False, **meta: Any) -> tuple[Path, str]:
    """The folder of a model that tells a number of texts, or of pairs, about 40 with a deviation of 8, and a file of rows."""
    columns = (
        {"text_columns": ["title"], "pair_column": "text"} if pairs else {"text_columns": ["title", "text"]}
    )
    about = {
        "task": "text-regression",
        "labels": [],
        **columns,
        "label_column": "minutes",
        "middle": 40.0,
        "spread": 8.0,
        "max_length": 12,
        "numerics": "fp32",
    }
    save_bundle(folder / "best", encoder_of_words(["minutes"]), {**about, **meta}, of_words())
    return folder / "best", _rows_of_words(folder)


def _rows_of_words(folder: Path) -> str:
    rows = folder / "rows.csv"
    long = "the film a bad book " * 9
    rows.write_text(f"title,text\na good film,the film\nbad,a bad book\ngood,good\na,{long}\n")
    return str(rows)


def run_card(folder: Path, **names: Any) -> dict[str, Any]:
    """Run the code on the card of an export, and return its names, with what it prints as `printed`.

    Args:
        names: what the code takes as there already.
    """
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    exec(code.replace("FOLDER", str(folder)).replace("print(", "printed = ("), names)
    return names


def picture_classifier(folder: Path) -> tuple[Path, str]:
    """The folder of a classifier of pictures, and a folder of pictures of other sizes than it sees."""
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        initializer_range=0.3,
        id2label={0: "red", 1: "green"},
        label2id={"red": 0, "green": 1},
    )
    torch.manual_seed(0)
    picture_format = PictureFormat(16, 16, 18, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    meta = {
        "task": "image-classification",
        "labels": ["red", "green"],
        "image_column": "image",
        "label_column": "label",
        "pictures": picture_format.as_dict(),
        "augment": [],
        "numerics": "fp32",
    }
    save_bundle(folder / "best", ViTForImageClassification(config).eval(), meta)
    (folder / "pictures").mkdir(exist_ok=True)
    for number in range(3):
        values = torch.randint(0, 256, (18 + number, 25, 3), dtype=torch.uint8)
        Image.fromarray(values.numpy()).save(folder / f"pictures/{number}.png")
    return folder / "best", str(folder / "pictures")
