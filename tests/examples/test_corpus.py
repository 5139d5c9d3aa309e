"""The demo's corpus: what its score may not rest on is really gone, and the split is by module."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "stdlib_docs"


def load(name: str) -> ModuleType:
    """Import a file of the example, which is no package, by its path."""
    qualified = f"stdlib_docs_{name}"
    spec = importlib.util.spec_from_file_location(qualified, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


source = load("corpus")
baselines = load("baselines")


@pytest.fixture(scope="module")
def corpus() -> Any:
    return source.build()


def pieces(text: str) -> set[str]:
    """Words of `text`, and the parts of its identifiers split at underscores, digits and changes of case."""
    words = re.findall(r"[A-Za-z]+", text)
    parts = [part for word in words for part in re.findall(r"[A-Z]+s?(?![a-z])|[A-Z]?[a-z]+", word)]
    return {piece.lower() for piece in words + parts}


def test_no_module_is_on_both_sides(corpus: Any) -> None:
    train, validation = ({e.module.split(".")[0] for e in side} for side in (corpus.train, corpus.validation))
    assert train and validation
    assert train & validation == set()


def test_modules_of_one_family_are_on_one_side(corpus: Any) -> None:
    side = {e.module.split(".")[0]: "train" for e in corpus.train}
    side |= {e.module.split(".")[0]: "validation" for e in corpus.validation}
    for _, family, modules in source.families():
        assert len({side[module] for module in modules if module in side}) <= 1, family


def test_no_module_stands_in_two_families() -> None:
    counts = Counter(module for _, _, modules in source.families() for module in modules)
    assert [module for module, count in counts.items() if count > 1] == []


def test_no_text_occurs_twice(corpus: Any) -> None:
    texts = Counter(source.normalised(e.text) for e in corpus.train + corpus.validation)
    assert [text for text, count in texts.items() if count > 1] == []


def test_a_text_of_two_families_is_left_out_and_one_repeated_in_a_family_is_kept_once() -> None:
    shared = [source.Example("a", "x", "x", "Close it!"), source.Example("b", "y", "y", "close  it")]
    repeated = [source.Example("a", "x", "x", "Open it."), source.Example("a", "x", "x.z", "open it")]
    assert source._without_shared_texts(shared + repeated) == repeated[:1]


def test_names_of_the_modules_are_gone_from_the_texts(corpus: Any) -> None:
    modules = {module.strip("_").lower() for _, _, modules in source.families() for module in modules}
    for example in corpus.train + corpus.validation:
        own = {part.strip("_").lower() for part in example.module.split(".")}
        assert pieces(example.text) & (modules | own) == set(), example


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a TarFile, a tarfile, TARFILES", "a , a ,"),
        ("tarfile.open and self.tarfile_name", "open and self. name"),
        ("HTTPServer over http://host", "Server over ://host"),
        ("a TarHTTPTarFile and HTTPS", "a Tar and"),
        ("URLTarfile of MREs", "URL of MREs"),
        ("retarfiled request", "retarfiled request"),
        ("the re module returns", "the module returns"),
    ],
)
def test_a_name_is_removed_as_a_word_or_a_part_of_an_identifier_only(text: str, expected: str) -> None:
    assert source.without_names(text, {"tarfile", "http", "re"}) == expected


def test_every_class_is_on_both_sides_with_a_fifth_to_a_quarter_held_out(corpus: Any) -> None:
    train, validation = (Counter(e.label for e in side) for side in (corpus.train, corpus.validation))
    assert set(train) == set(validation) == set(source.CHAPTERS)
    for label in source.CHAPTERS:
        assert 0.15 <= validation[label] / (train[label] + validation[label]) <= 0.25, label
    assert 0.2 <= validation.total() / (train.total() + validation.total()) <= 0.25


def test_the_corpus_is_large_enough_and_no_family_dominates(corpus: Any) -> None:
    assert len(corpus.train) >= 1500
    assert len(corpus.validation) >= 400
    families = Counter(e.family for e in corpus.train + corpus.validation)
    assert max(families.values()) <= source.MAX_PER_FAMILY
    assert min(len(e.text) for e in corpus.train + corpus.validation) >= source.MIN_CHARACTERS


def test_building_twice_gives_the_same_files(corpus: Any, tmp_path: Path) -> None:
    first = source.write(corpus, tmp_path / "first")
    second = source.write(source.build(), tmp_path / "second")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_another_seed_holds_other_modules_out(corpus: Any) -> None:
    other = source._validation_families(corpus.train + corpus.validation, seed=1)
    assert other != {e.family for e in corpus.validation}


def test_the_files_hold_the_examples_and_nothing_else(corpus: Any, tmp_path: Path) -> None:
    paths = source.write(corpus, tmp_path)
    for path, side in zip(paths, (corpus.train, corpus.validation), strict=True):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows == [{"label": e.label, "text": e.text} for e in side]


def test_a_library_without_sources_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gives 0 documentation strings.*\.py files"):
        source.build(tmp_path)


def test_the_library_is_parsed_and_never_imported(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    doc = "Return the words of a sentence in the order in which they were written."
    (tmp_path / "csv.py").write_text(f'"""{doc}"""\nopen({str(mark)!r}, "w")\n', encoding="utf-8")
    assert [e.text for e in source._examples(tmp_path)] == [doc]
    assert not mark.exists()


def test_majority_is_the_share_of_the_most_frequent_training_class(corpus: Any) -> None:
    train = [e.label for e in corpus.train]
    labels = [e.label for e in corpus.validation]
    top = max(Counter(train).values())
    (winner,) = {label for label, count in Counter(train).items() if count == top}
    accuracy = baselines.scores(labels, baselines.majority(train, labels))["accuracy"]
    assert accuracy == pytest.approx(labels.count(winner) / len(labels))
    assert baselines.majority(["b", "a", "b", "a"], ["c"]) == ["a"]


def test_the_tfidf_baseline_beats_the_majority_class(corpus: Any) -> None:
    train, texts = [e.label for e in corpus.train], [e.text for e in corpus.train]
    labels = [e.label for e in corpus.validation]
    predictions = baselines.tfidf(train, texts, [e.text for e in corpus.validation])
    learned = baselines.scores(labels, predictions)["accuracy"]
    assert learned > baselines.scores(labels, baselines.majority(train, labels))["accuracy"] + 0.1


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return load("demo")


def test_weights_that_are_not_the_recorded_ones_are_refused_with_both_hashes(
    demo: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert demo.verified_model(tmp_path, known) == tmp_path
    with pytest.raises(demo.DemoFailed, match=f"{known}.*{demo.MODEL_SHA256}") as failure:
        demo.verified_model(tmp_path)
    assert failure.value.code == 2


def test_missing_weights_are_named(demo: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(demo.DemoFailed, match=r"model\.safetensors is missing"):
        demo.verified_model(tmp_path)


def test_the_packaged_weights_are_the_recorded_ones(demo: ModuleType) -> None:
    pytest.importorskip(demo.MODEL_PACKAGE, reason="the demo's encoder is not installed")
    assert (demo.verified_model() / "config.json").is_file()
