"""Loading transformers models: new heads are seeded and told, wrong folders refused, nothing runs code."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from snugfit.errors import MissingExtra, ModelError, SettingError
from snugfit.models.bundle import save_bundle
from snugfit.models.folders import packaged_model
from snugfit.models.huggingface import load_causal_lm, load_classifier
from snugfit.models.tokenizer import check_length, load_tokenizer, position_limit
from snugfit.techniques import find

LABELS = ("neg", "pos")


def weights(loaded) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_new_head_is_seeded_and_told_and_the_body_is_the_folders(encoder):
    first, again = (load_classifier(encoder, LABELS, seed=3) for _ in range(2))
    other = load_classifier(encoder, LABELS, seed=4)
    assert first.messages == ("the head is newly initialised (classifier.bias, classifier.weight)",)
    assert same(weights(first), weights(again))
    changed = {
        name for name, tensor in weights(first).items() if not torch.equal(tensor, weights(other)[name])
    }
    assert changed == {"classifier.weight"}
    stored = load_file(encoder / "model.safetensors")
    assert all(torch.equal(weights(first)[f"bert.{name}"], tensor) for name, tensor in stored.items())
    assert first.model.config.id2label == {0: "neg", 1: "pos"}
    assert first.model.config.label2id == {"neg": 0, "pos": 1}


def test_loading_leaves_the_callers_random_state_alone(encoder):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    load_classifier(encoder, LABELS, seed=3)
    assert torch.equal(torch.rand(1), expected)


def test_a_head_for_the_same_labels_is_kept(classifier):
    loaded = load_classifier(classifier, LABELS)
    assert loaded.messages == ()
    assert same(weights(loaded), load_file(classifier / "model.safetensors"))


@pytest.mark.parametrize("labels", [("pos", "neg"), ("no", "yes"), ("a", "b", "c")])
def test_a_head_for_other_labels_is_replaced_and_told(classifier, labels):
    loaded = load_classifier(classifier, labels, seed=1)
    assert len(loaded.messages) == 1
    assert "head" in loaded.messages[0]
    stored = load_file(classifier / "model.safetensors")
    body = {name for name in stored if name.startswith("bert.")}
    assert all(torch.equal(weights(loaded)[name], stored[name]) for name in body)
    head = weights(loaded)["classifier.weight"]
    assert head.shape[0] == len(labels)
    assert not torch.equal(head[:2], stored["classifier.weight"])
    assert loaded.model.config.num_labels == len(labels)
    again = load_classifier(classifier, labels, seed=1)
    assert same(weights(loaded), weights(again))


def test_weights_are_loaded_in_float32(encoder):
    path = encoder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    loaded = load_classifier(encoder, LABELS)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_without_transformers_the_extra_is_named(encoder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(MissingExtra, match=r"transformers .* pip install 'snugfit\[text\]'"):
        load_classifier(encoder, LABELS)


def test_loading_prints_nothing(encoder, capfd):
    load_classifier(encoder, LABELS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("bars", [False, True])
def test_logs_and_bars_are_as_before_after_loading(encoder, bars):
    from transformers.utils import logging as hf_logging

    before = hf_logging.is_progress_bar_enabled()
    switches = {False: hf_logging.disable_progress_bar, True: hf_logging.enable_progress_bar}
    try:
        switches[bars]()
        level = hf_logging.get_verbosity()
        load_classifier(encoder, LABELS)
        assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (level, bars)
    finally:
        switches[before]()


def test_a_configuration_alone_trains_from_scratch_when_asked(tmp_path, bert_config):
    bert_config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"holds no weights .*write model: config:{tmp_path}"):
        load_classifier(tmp_path, LABELS)
    asked = load_classifier(f"config:{tmp_path}", LABELS, seed=1)
    flagged = load_classifier(tmp_path, LABELS, seed=1, from_scratch=True)
    assert same(weights(asked), weights(flagged))
    assert asked.messages == ()  # what was asked for is nothing to warn of
    assert not asked.model.training  # as from a folder; the loop sets the mode
    assert not same(weights(asked), weights(load_classifier(f"config:{tmp_path}", LABELS, seed=2)))


class RunsCode:
    def __reduce__(self):
        return (Path.touch, (Path("ran.txt"),))


def test_a_pickle_is_never_opened(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (encoder / "model.safetensors").unlink()
    (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(ModelError, match=r"pickle only \(pytorch_model\.bin\).*python -c") as caught:
        load_classifier(encoder, LABELS)
    assert not Path("ran.txt").exists()
    assert "use_safetensors=False" in str(caught.value)


def test_the_conversion_that_the_message_proposes_works(classifier):
    stored = load_file(classifier / "model.safetensors")
    (classifier / "model.safetensors").unlink()
    torch.save(stored, classifier / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        load_classifier(classifier, LABELS)
    command = str(caught.value).split('python -c "')[1].removesuffix('"')
    exec(command.replace("AutoModelForPreTraining", "AutoModelForSequenceClassification"))
    assert same(weights(load_classifier(classifier, LABELS)), stored)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json\. It holds model\.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "config.json").write_text("{}"), "no model_type"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "nosuch"}'), "cannot be loaded"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"123"),
            "cannot be loaded: SafetensorError",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/v1"),
            "git lfs pull",
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
            ),
            "lacks 2 of its 2 weight files, the first is model-00001-of-00002",
        ),
    ],
)
def test_a_damaged_folder_is_refused_with_what_is_wrong(encoder, damage, message):
    damage(encoder)
    with pytest.raises(ModelError, match=message):
        load_classifier(encoder, LABELS)


def test_weights_of_another_shape_or_model_are_refused(encoder):
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps({**config, "hidden_size": 8}))
    with pytest.raises(ModelError, match=r"do not fit its configuration .*the shape of bert"):
        load_classifier(encoder, LABELS)
    (encoder / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(1)}, encoder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="tensors are missing"):
        load_classifier(encoder, LABELS)


def test_a_model_that_brings_its_own_code_is_refused(encoder):
    config = json.loads((encoder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.C", "AutoModelForSequenceClassification": "own.M"},
    }
    (encoder / "config.json").write_text(json.dumps(config))
    (encoder / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="brings its own Python code"):
        load_classifier(encoder, LABELS)


@pytest.mark.parametrize(
    "named",
    [
        {"attn_implementation": "owner/kernel"},
        {"_attn_implementation": "owner/kernel@v1:forward"},
        {"text_config": {"attn_implementation": "owner/kernel"}},
        {"attn_implementation": {"text_config": "owner/kernel", "": "sdpa"}},
        {"experts_implementation": "owner/kernel"},
    ],
    ids=str,
)
def test_a_configuration_that_names_kernels_on_the_hub_is_refused(encoder, named):
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | {"attn_implementation": "sdpa"}))
    load_classifier(encoder, LABELS)
    (encoder / "config.json").write_text(json.dumps(config | named))
    with pytest.raises(ModelError, match=r"_implementation is 'owner/kernel.*download and run"):
        load_classifier(encoder, LABELS)


def test_a_missing_folder_names_the_nearest(encoder, tmp_path):
    with pytest.raises(ModelError, match=r"no folder \./encodr .*Did you mean 'encoder'\?"):
        load_classifier("./encodr", LABELS, folder=tmp_path)
    with pytest.raises(ModelError, match="no folder"):
        load_classifier(tmp_path / "nothing", LABELS)
    with pytest.raises(ModelError, match="is a file"):
        load_classifier(encoder / "config.json", LABELS)


def test_a_relative_folder_is_looked_for_in_the_given_one(encoder, tmp_path):
    assert load_classifier("encoder", LABELS, folder=tmp_path).model.num_labels == 2


@pytest.mark.slow
def test_a_cached_name_loads_offline_and_a_cached_pickle_does_not(encoder, tmp_path):
    """In a process of its own: the place of the cache is read when the hub's client is imported."""
    for name, keep in (("good", True), ("pickled", False)):
        revision = tmp_path / "hub" / f"models--nobody--{name}" / "snapshots" / ("0" * 40)
        shutil.copytree(encoder, revision)
        (revision.parents[1] / "refs").mkdir()
        (revision.parents[1] / "refs" / "main").write_text("0" * 40)
        if not keep:
            torch.save(load_file(revision / "model.safetensors"), revision / "pytorch_model.bin")
            (revision / "model.safetensors").unlink()
    code = """
from snugfit.errors import ModelError
from snugfit.models.huggingface import load_classifier
print(load_classifier("nobody/good", ("a", "b")).messages)
try:
    print(load_classifier("nobody/pickled", ("a", "b")))
except ModelError as error:
    print("refused:", error)
"""
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert "the head is newly initialised" in first
    assert second.startswith("refused: model: the local cache of 'nobody/pickled' lacks a file")
    assert "pytorch_model.bin" in second


def test_a_name_that_is_nowhere_is_refused_when_offline(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"neither a folder here .* nor in the local cache, and HF_HUB_OFFLINE"
    ):
        load_classifier("nobody/no-such-model", LABELS)


def test_a_hub_that_does_not_answer_is_told_at_once(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1 cannot be reached"):
        load_tokenizer("nobody/no-such-model")


def test_an_encoder_is_no_causal_model(encoder, bert_config):
    bert_config.save_pretrained(encoder)
    for empty in (False, True):  # a plan refuses it too
        with pytest.raises(ModelError, match="is an encoder"):
            load_causal_lm(f"config:{encoder}", empty=empty)


def test_a_causal_model_is_loaded_with_its_ties(decoder):
    loaded = load_causal_lm(decoder)
    assert loaded.messages == ()
    assert loaded.model.lm_head.weight is loaded.model.transformer.wte.weight


def test_a_decoder_classifies_the_last_token_before_the_padding(decoder, tokenizer):
    model = load_classifier(decoder, LABELS, tokenizer=tokenizer).model
    short = torch.tensor([[2, 4, 3]])
    padded = torch.tensor([[2, 4, 3, 0, 0]])
    mask = (padded != 0).long()
    torch.testing.assert_close(model(short).logits, model(padded, attention_mask=mask).logits)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tmp_path, tokenizer):
    GPT2Config(vocab_size=4, n_embd=4, n_layer=1, n_head=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"the tokenizer knows 8 tokens, .* has embeddings for 4\."):
        load_causal_lm(f"config:{tmp_path}", tokenizer=tokenizer)


def test_tokens_that_a_tokenizer_is_given_get_rows_of_their_own_and_the_others_stay(tmp_path, tokenizer):
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    known = "good"
    given = load_tokenizer(tmp_path, add=["<|a|>", known, "<|b|>", "<|a|>"])
    assert [given(each, add_special_tokens=False)["input_ids"] for each in ("<|a|>", "<|b|>")] == [[8], [9]]
    plain = load_causal_lm(tmp_path).model
    state = torch.get_rng_state()
    first, again = (load_causal_lm(tmp_path, tokenizer=given).model for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    rows = first.get_input_embeddings().weight
    assert rows.shape[0] == first.config.vocab_size == 10 and first.lm_head.weight is rows
    assert torch.equal(rows[:8], plain.get_input_embeddings().weight)
    assert torch.equal(rows, again.get_input_embeddings().weight)
    empty = load_causal_lm(tmp_path, tokenizer=given, empty=True).model
    assert empty.get_input_embeddings().weight.shape[0] == 10 and empty.lm_head.weight.is_meta
    with pytest.raises(SettingError, match=r"data\.add_tokens: has a token without a character"):
        load_tokenizer(tmp_path, add=[" "])
    GPT2Config(vocab_size=4, n_embd=4, n_layer=1, n_head=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"the tokenizer knows 8 tokens, .* has embeddings for 4\."):
        load_causal_lm(f"config:{tmp_path}", tokenizer=given)


def test_rows_for_new_tokens_are_refused_where_each_device_reads_a_part_of_them(tmp_path, tokenizer):
    config = GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, tie_word_embeddings=False)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    given = load_tokenizer(tmp_path, add=["<|a|>"])
    with pytest.raises(SettingError, match=r"data\.add_tokens: .* each device has read a part of them"):
        load_causal_lm(tmp_path, tokenizer=given, keep=lambda weight: weight[:1].clone())


def test_a_folder_without_vocabulary_has_no_tokenizer(encoder, tokenizer):
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_tokenizer(encoder)
    tokenizer.save_pretrained(encoder)
    assert load_tokenizer(encoder)("good film")["input_ids"] == [2, 4, 6, 3]


def test_a_tokenizer_without_padding_pads_on_the_right_with_its_end(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["pad_token"], config["eos_token"], config["padding_side"] = None, "[SEP]", "left"
    path.write_text(json.dumps(config))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.pad_token, loaded.padding_side) == ("[SEP]", "right")


def test_texts_longer_than_the_positions_are_refused(encoder, decoder):
    bert = load_classifier(encoder, LABELS).model
    gpt = load_causal_lm(decoder).model
    assert (position_limit(bert), position_limit(gpt)) == (24, 24)
    check_length(bert, 24)
    with pytest.raises(SettingError, match=r"data\.max_length: 25 is more than the 24 positions"):
        check_length(bert, 25)
    assert position_limit(torch.nn.Linear(1, 1)) is None


@pytest.mark.parametrize("kind", ["roberta", "opt"])
def test_positions_that_a_model_counts_from_an_offset_are_not_promised(kind):
    """Checked against the model itself: the limit runs, one more does not."""
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 10}
    own = {"opt": {"ffn_dim": 8, "word_embed_proj_dim": 8}, "roberta": {"intermediate_size": 8}}[kind]
    config = AutoConfig.for_model(kind, **sizes, **own, max_position_embeddings=12)
    model = AutoModel.from_config(config).eval()
    limit = position_limit(model)
    model(torch.full((1, limit), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, limit + 1), 5))


def test_a_package_that_carries_no_model_is_told():
    with pytest.raises(MissingExtra, match=r"no-such-package is not installed.*snugfit\[demo\]"):
        packaged_model("no_such_package")
    with pytest.raises(ModelError, match="package json holds no model"):
        packaged_model("json")


def test_the_carried_encoder_loads_as_transformers_loads_it(minilm):
    tokenizer = load_tokenizer(minilm)
    loaded = load_classifier(minilm, ("a", "b", "c"), tokenizer=tokenizer, seed=0)
    assert loaded.messages == ("the head is newly initialised (classifier.bias, classifier.weight)",)
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) == 22_714_371
    theirs = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=3)
    assert isinstance(theirs, BertForSequenceClassification)
    mine = loaded.model.state_dict()
    assert all(
        torch.equal(mine[name], tensor)
        for name, tensor in theirs.state_dict().items()
        if not name.startswith("classifier.")
    )


def test_a_model_is_loaded_without_touching_its_folder(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / "copy")
    load_classifier(encoder, LABELS)
    left, right = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (encoder, tmp_path / "copy")
    )
    assert left == right


def test_a_run_that_goes_on_without_a_technique_of_the_model_is_told(tmp_path, classifier):
    model = BertForSequenceClassification.from_pretrained(classifier)
    save_bundle(tmp_path / "best", model, {"extended_by": [{"alibi": {}}]})
    (message,) = load_classifier(tmp_path / "best", LABELS).messages
    assert "was trained with alibi, without which its weights compute something else" in message
    with_it = load_classifier(tmp_path / "best", LABELS, techniques=[find("alibi")()])
    assert with_it.messages == ()


def test_weights_whose_shape_a_technique_had_changed_say_which(tmp_path, bert_config):
    model = find("glu")().prepare(BertForSequenceClassification(bert_config))
    save_bundle(tmp_path / "best", model, {"extended_by": [{"glu": {}}]})
    with pytest.raises(ModelError, match="the shape of .* differs, as they were trained with glu"):
        load_classifier(tmp_path / "best", LABELS)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "GatedRepo",
            "is gated: .* Accept them on its page and log in .*; for a machine without the hub copy",
        ),
        (
            "RepoNotFound",
            "the hub has no model 'owner/model', or one that is private. Correct the name, log in",
        ),
    ],
)
def test_a_gated_and_an_absent_model_say_what_to_do(code, words, monkeypatch):
    from huggingface_hub import constants

    class Refusing(BaseHTTPRequestHandler):
        def log_message(self, *_):
            """Stay silent."""

        def do_HEAD(self):
            self.send_response(403 if code == "GatedRepo" else 404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("urllib.request.getproxies", dict)
    try:
        with pytest.raises(ModelError, match=words):
            load_tokenizer("owner/model")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
