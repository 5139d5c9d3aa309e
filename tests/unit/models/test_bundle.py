"""Bundles: what is loaded is what was saved, and a save that is cut off anywhere leaves a whole bundle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.errors import ModelError, RunFolderError
from snugfit.kit.optimizers.masters import narrow_
from snugfit.models import bundle
from snugfit.models.bundle import find_bundle, load_bundle, read_meta, save_bundle
from snugfit.models.huggingface import load_causal_lm, load_classifier

META = {
    "task": "python",
    "labels": ["a", "b"],
    "metrics": {"loss": float("nan"), "accuracy": 0.5},
    "model": None,
}


class Tied(nn.Module):
    """An unmodified user model: tied weights, a buffer, two slices of one storage, an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        flat = torch.randn(8)
        self.left, self.right = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
        self.across = nn.Parameter(torch.randn(3, 2).t())
        self.register_buffer("nothing", torch.zeros(0))


def build() -> nn.Module:
    return Tied()


def equal(left: nn.Module, right: nn.Module) -> bool:
    ours, theirs = left.state_dict(), right.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_plain_model_with_ties_comes_back_tied(tmp_path):
    model = Tied()
    save_bundle(tmp_path / "best", model, META)
    loaded, meta, tokenizer = load_bundle(tmp_path / "best", model=Tied().train())
    assert equal(loaded, model)
    assert loaded.head.weight is loaded.embed.weight
    assert not loaded.training
    assert tokenizer is None
    assert meta["labels"] == ["a", "b"]
    assert meta["metrics"] == {"loss": "NaN", "accuracy": 0.5}
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "model.safetensors",
        "snugfit.json",
    ]
    assert model.left.untyped_storage().data_ptr() == model.right.untyped_storage().data_ptr()  # untouched


def test_a_plain_model_is_made_again_by_its_python_path(tmp_path):
    (tmp_path / "bundled_net.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(2, 3), nn.ReLU())\n"
    )
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    save_bundle(tmp_path / "best", model, {**META, "model": "bundled_net:build"})
    assert equal(load_bundle(tmp_path / "best", search=tmp_path, allow_code=True)[0], model)


def test_a_plain_model_that_cannot_be_made_asks_for_it(tmp_path):
    save_bundle(tmp_path / "best", Tied(), META)
    with pytest.raises(ModelError, match=r"sf\.load\(run, model=my_model\)"):
        load_bundle(tmp_path / "best")
    with pytest.raises(ModelError, match=r"do not fit Linear: .*Put its code back"):
        load_bundle(tmp_path / "best", model=nn.Linear(2, 2))


def test_a_classifier_comes_back_with_its_labels_and_tokenizer(tmp_path, encoder, tokenizer):
    model = load_classifier(encoder, ("a", "b"), seed=1, tokenizer=tokenizer).model
    save_bundle(tmp_path / "best", model, META, tokenizer)
    loaded, _, words = load_bundle(tmp_path / "best")
    assert type(loaded) is type(model)
    assert equal(loaded, model)
    assert loaded.config.id2label == {0: "a", 1: "b"}
    assert words("good film")["input_ids"] == tokenizer("good film")["input_ids"]
    batch = {key: torch.tensor([value]) for key, value in words("good film").items()}
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert not [path for path in (tmp_path / "best").iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_a_language_model_comes_back_tied(tmp_path, decoder):
    model = load_causal_lm(decoder).model
    save_bundle(tmp_path / "best", model, META)
    loaded = load_bundle(tmp_path / "best")[0]
    assert equal(loaded, model)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_weights_of_several_types_come_back_in_their_types_and_other_readers_lose_nothing(tmp_path, encoder):
    model = narrow_(load_classifier(encoder, ("no", "yes"), seed=0).model, torch.bfloat16)
    expected = {name: each.detach().clone() for name, each in model.named_parameters()}
    assert {each.dtype for each in expected.values()} == {torch.bfloat16, torch.float32}
    save_bundle(tmp_path / "best", model, {"task": "text-classification", "labels": ["no", "yes"]})
    assert json.loads((tmp_path / "best" / "config.json").read_text())["dtype"] == "float32"
    found, _, _ = load_bundle(tmp_path / "best")
    for name, each in found.named_parameters():
        assert each.dtype == expected[name].dtype and torch.equal(each, expected[name]), name


def test_saving_again_replaces_the_bundle_and_leaves_nothing_beside_it(tmp_path):
    first, second = Tied(), Tied()
    save_bundle(tmp_path / "best", first, META)
    save_bundle(tmp_path / "best", second, {**META, "update": 7})
    loaded, meta, _ = load_bundle(tmp_path / "best", model=Tied())
    assert equal(loaded, second)
    assert meta["update"] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in the package catches it."""


POINTS = ["_save_plain", "_sha256", "flush", "os.replace", "shutil.rmtree"]


@pytest.mark.parametrize("again", [False, True], ids=["first save", "save again"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", POINTS)
def test_a_save_that_is_cut_off_anywhere_leaves_a_whole_bundle(tmp_path, monkeypatch, place, late, again):
    """At every call, before and after it: the old bundle or the new one is there, and the next save works."""
    owner, _, name = place.rpartition(".")
    target = getattr(bundle, owner) if owner else bundle
    original = getattr(target, name)
    old, new = Tied(), Tied()
    for call in range(20):
        folder = tmp_path / str(call) / "best"
        if again:
            save_bundle(folder, old, META)
        calls = 0

        def cut(*arguments, stop=call, **more):
            nonlocal calls
            calls += 1
            if calls - 1 == stop and not late:
                raise KilledError
            result = original(*arguments, **more)
            if calls - 1 == stop and late:
                raise KilledError
            return result

        monkeypatch.setattr(target, name, cut)
        try:
            save_bundle(folder, new, META)
        except KilledError:
            finished = False
        else:
            finished = True
        monkeypatch.setattr(target, name, original)
        whole = (folder / "snugfit.json").exists() or folder.with_name(".best.old").exists()
        assert whole or not (again or finished)
        if whole:
            loaded = load_bundle(folder, model=Tied())[0]
            assert equal(loaded, new) or (again and equal(loaded, old))
        else:
            with pytest.raises(ModelError, match="is no bundle"):
                load_bundle(folder, model=Tied())
        save_bundle(folder, new, META)
        assert equal(load_bundle(folder, model=Tied())[0], new)
        assert [path.name for path in folder.parent.iterdir()] == ["best"]
        if finished:
            assert call > 0
            return
    pytest.fail("20 calls and no end")


def test_a_flipped_bit_is_found(tmp_path):
    save_bundle(tmp_path / "best", Tied(), META)
    path = tmp_path / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is missing or damaged"):
        load_bundle(tmp_path / "best", model=Tied())
    path.unlink()
    with pytest.raises(ModelError, match="is missing or damaged"):
        load_bundle(tmp_path / "best", model=Tied())


def test_a_folder_that_is_no_bundle_or_a_later_format_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no snugfit\.json in it"):
        find_bundle(tmp_path)
    (tmp_path / "snugfit.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_meta(tmp_path)
    (tmp_path / "snugfit.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(ModelError, match="has format 2; this version of Snugfit reads format 1"):
        load_bundle(tmp_path)


def test_state_that_needs_a_pickle_is_refused(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"anything": object}

        def set_extra_state(self, state):
            del state

    with pytest.raises(
        ModelError, match="its extra state cannot be stored .*_extra_state/anything is a type"
    ):
        save_bundle(tmp_path / "best", Extra(1, 1), META)
    assert not (tmp_path / "best").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_bundle(tmp_path / "file" / "best", Tied(), META)


def test_the_carried_encoder_round_trips(tmp_path, minilm):
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(minilm)
    model = load_classifier(minilm, ("a", "b"), tokenizer=tokenizer).model
    save_bundle(tmp_path / "best", model, META, tokenizer)
    loaded, _, words = load_bundle(Path(os.path.relpath(tmp_path / "best")))
    assert equal(loaded, model)
    text = "A text, with [MASK] and Ünïcode."
    assert words(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_who_does_not_know_of_a_technique_that_changed_the_model_meets_what_it_does_not_expect(tmp_path):
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=2
    )
    changed = {"extended_by": [{"blurpool": {}}]}
    save_bundle(tmp_path / "best", transformers.ResNetForImageClassification(config), changed)
    _, loaded = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "best", output_loading_info=True
    )
    assert set(loaded["unexpected_keys"]) == {"snugfit.changed_by.blurpool"}
