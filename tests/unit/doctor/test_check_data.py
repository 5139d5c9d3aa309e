"""Each pitfall of data on a planted fault, and not on its sound twin."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

import snugfit as sf
from snugfit.cli import main
from snugfit.core.batch import Batch
from snugfit.data.bad_rows import Fault
from snugfit.doctor import check_data
from snugfit.doctor.check_rows import Rows, examine_rows
from snugfit.doctor.check_tokens import end_never_scored, examine_tokens, views
from snugfit.doctor.door import examine_file
from snugfit.tools.setup import module_setup

TEXTS = [f"text number {number}" for number in range(200)]
LABELS = ["good", "bad"] * 100


def certainties(findings) -> dict[str, str]:
    return {finding.pitfall: str(finding.certainty) for finding in findings}


def test_sound_rows_are_healthy():
    assert examine_rows(Rows(TEXTS, LABELS), Rows(["another", "and one more"], ["good", "bad"])) == []


def test_training_rows_among_the_validation_rows_are_counted_exactly_and_but_for_case_and_spaces():
    held_out = Rows(["text number 3", " TEXT  number 4", *(f"new {number}" for number in range(48))])
    (finding,) = examine_rows(Rows(TEXTS), held_out)
    assert (finding.pitfall, finding.certainty) == ("leakage", "likely")
    assert "2 of 50 validation texts (4.0%)" in finding.what
    assert finding.evidence[0] == "1 exactly, 1 but for case and spaces"


def test_one_row_of_many_that_leaks_is_worth_a_look():
    held_out = Rows(["text number 3", *(f"new {number}" for number in range(199))])
    assert certainties(examine_rows(Rows(TEXTS), held_out)) == {"leakage": "worth a look"}


def test_repeated_rows_are_noted_and_those_of_two_labels_warned_of():
    same = Rows([*TEXTS, "text number 0", "Text number 0"], [*LABELS, "good", "good"])
    (finding,) = examine_rows(same, None)
    assert (finding.pitfall, finding.certainty) == ("duplicates", "worth a look")
    assert "2 of 202 rows repeat" in finding.what and "3 times" in finding.evidence[0]
    lined = Rows(same.texts, same.labels, "a.csv", [10 * (row + 1) for row in range(len(same.texts))])
    (finding,) = examine_rows(lined, None)
    count = len(TEXTS)
    assert finding.evidence == (f"3 times 'text number 0' (lines 10, {10 * count + 10}, {10 * count + 20})",)
    against = Rows([*TEXTS, *TEXTS[:5]], [*LABELS, *("other" for _ in range(5))])
    first, second = examine_rows(against, None)
    assert first.certainty == "likely" and "5 texts (10 rows) with different labels" in first.what
    assert second.certainty == "worth a look"


@pytest.mark.parametrize(("rare", "expected"), [(5, {"imbalance": "likely"}), (40, {})])
def test_a_class_that_nearly_all_rows_have_is_warned_of(rare, expected):
    labels = ["no"] * (200 - rare) + ["yes"] * rare
    assert certainties(examine_rows(Rows(TEXTS, labels), None)) == expected


def test_labels_that_only_validation_has_are_certain():
    held_out = Rows(["a", "b"], ["good", "ugly"])
    (finding,) = examine_rows(Rows(TEXTS, LABELS), held_out)
    assert (finding.pitfall, finding.certainty) == ("unknown_label", "certain")
    assert finding.evidence == ("'ugly' 1 times",)


def test_rows_that_cannot_be_used_are_told_by_reason():
    faults = [
        Fault("a.csv", 3, "empty text", "text is empty"),
        Fault("a.csv", 9, "empty text", "text is empty"),
    ]
    (finding,) = examine_rows(Rows(TEXTS, LABELS), None, faults)
    assert (finding.pitfall, finding.certainty, finding.where) == ("empty_rows", "likely", "a.csv:3")
    assert finding.what == "2 of 202 rows cannot be used: empty text"


def test_examples_of_tensors_leak_by_what_the_model_is_given():
    rows = [(torch.full((2,), float(number)), number % 2) for number in range(50)]
    shared = [(torch.full((2,), 7.0), 0), *((torch.full((2,), 100.0 + number), 1) for number in range(9))]
    assert certainties(check_data.examine_examples(rows, shared)) == {"leakage": "certain"}
    assert check_data.examine_examples(rows, shared[1:]) == []


def tokens(labels: list[list[int]]) -> list[dict]:
    return [{"input_ids": [place, 1, 2, 3], "labels": label} for place, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[-100] * 4] * 50, {"ignored_labels": "certain"}),
        ([[-100] * 4] * 2 + [[-100, 1, 2, 3]] * 48, {"ignored_labels": "likely"}),
        ([[-100, -100, -100, 3]] * 50, {}),
        ([[0, 1, 2, 3]] * 50, {}),
    ],
)
def test_labels_that_do_not_count_are_counted(labels, expected):
    assert certainties(check_data.ignored_labels(tokens(labels))) == expected


def windows(ids: torch.Tensor, labels: torch.Tensor) -> list[Batch]:
    return [Batch.of({"input_ids": ids, "labels": labels})]


def test_labels_are_shifted_once_by_whoever_shifts_them():
    ids = torch.randint(0, 1000, (4, 16), generator=torch.Generator().manual_seed(0))
    ahead = torch.cat([ids[:, 1:], torch.full((4, 1), -100)], dim=1)
    assert certainties(check_data.shifted_labels(windows(ids, ids), 1)) == {}
    assert certainties(check_data.shifted_labels(windows(ids, ahead), 1)) == {"shifted_labels": "certain"}
    assert certainties(check_data.shifted_labels(windows(ids, ids), 0)) == {"shifted_labels": "certain"}
    assert certainties(check_data.shifted_labels(windows(ids, ahead), 0)) == {}
    assert certainties(check_data.shifted_labels(windows(ids, ids), None)) == {}
    prompted = ids.clone()
    prompted[:, :8] = -100
    assert certainties(check_data.shifted_labels(windows(ids, prompted), 1)) == {}


def test_a_text_of_one_token_over_and_over_is_not_called_shifted():
    ids = torch.full((2, 8), 5)
    assert certainties(check_data.shifted_labels(windows(ids, ids), 1)) == {}


@pytest.mark.parametrize(
    ("truncated", "expected"),
    [
        (0, {}),
        (10, {"truncation": "worth a look"}),
        (49, {"truncation": "worth a look"}),
        (50, {"truncation": "likely"}),
    ],
)
def test_cut_texts_are_told_by_their_share(truncated, expected):
    assert certainties(check_data.truncation(truncated, 100, 64, 300)) == expected


@pytest.mark.parametrize(
    ("load", "compute", "expected"), [(0.5, 0.1, {"starving": "likely"}), (0.1, 0.5, {}), (0.005, 0.001, {})]
)
def test_a_loader_that_takes_longer_than_the_step_starves_it(load, compute, expected):
    rows = [(torch.randn(4), number % 3) for number in range(32)]
    setup = module_setup(nn.Linear(4, 3), rows, optimizer=sf.SGD(learning_rate=0.1), global_batch=8)
    # the clock is read before a window, after it, and after the step
    moments = itertools.accumulate(itertools.cycle([0.0, load, compute]))
    found = list(check_data.starving(setup.step(), setup.loader(), 0, clock=lambda: next(moments)))
    assert certainties(found) == expected
    if found:
        assert found[0].fix == "plan: {num_workers: 6}"


def test_windows_that_another_process_has_kept_waiting_are_loaded_again():
    rows = [(torch.randn(4), number % 3) for number in range(16)]
    setup = module_setup(nn.Linear(4, 3), rows, optimizer=sf.SGD(learning_rate=0.1), global_batch=8)
    loads = itertools.chain([0.0, 0.05, 0.0], itertools.repeat(0.002))  # of one round, and of those after it
    moments = itertools.accumulate(part for load in loads for part in (0.0, load, 0.001))
    assert not list(check_data.starving(setup.step(), setup.loader(), 0, clock=lambda: next(moments)))


def tokenizer(*, framed: bool = True, twice: bool = False) -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "a"]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if framed:
        made.post_processor = processors.TemplateProcessing(
            single=f"[CLS] {'[CLS] ' if twice else ''}$A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def test_texts_are_decoded_and_their_special_tokens_counted():
    examples = [{"input_ids": [2, 4, 5, 3], "labels": 0}, {"input_ids": [2, 4, 3], "labels": [-100, 4, 3]}]
    first, second = views(examples, tokenizer(), max_length=4)
    assert (first.text, first.tokens, first.special) == ("[CLS] the film [SEP]", 4, {"[CLS]": 1, "[SEP]": 1})
    assert first.cut and first.scored is None
    assert not second.cut and second.scored == 2


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([2, 4, 5, 3], None),
        ([2, 2, 4, 5, 3], "'[CLS]' stands twice in a row"),
        ([4, 5], "lack special tokens"),
    ],
)
def test_special_tokens_stand_once(ids, words):
    found = list(examine_tokens([{"input_ids": ids}] * 3, tokenizer(), framed=True))
    assert [finding.pitfall for finding in found] == (["special_tokens"] if words else [])
    assert words is None or (words in found[0].what and "3 of 3 examples" in found[0].what)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([-100, -100, 5, -100], {"end_never_scored": "likely"}),
        ([-100, -100, 5, 3], {}),
        ([-100, 5, 3, -100], {}),  # the next token's, as where nothing shifts them later
        ([-100] * 4, {}),
        (1, {}),
    ],
    ids=["left out", "scored", "shifted", "nothing counts", "of the whole text"],
)
def test_ends_that_are_never_scored_are_found_in_the_labels_of_tokens(labels, expected):
    made = tokenizer()
    made.eos_token = "[SEP]"
    examples = [{"input_ids": [2, 4, 5, 3], "labels": labels}] * 9
    assert certainties(end_never_scored(examples, made)) == expected
    assert certainties(end_never_scored(examples[:7], made)) == {}, "too few to tell"


def test_the_end_of_a_turn_is_what_the_chat_template_ends_one_with():
    made = tokenizer()
    examples = [{"input_ids": [2, 4, 5, 3], "labels": [-100, -100, 5, -100]}] * 9
    assert certainties(end_never_scored(examples, made)) == {}
    made.chat_template = "{% for each in messages %}{{ each.content }}[SEP]{% endfor %}"
    assert certainties(end_never_scored(examples, made)) == {"end_never_scored": "likely"}


def test_blocks_of_running_text_need_no_frame():
    assert list(examine_tokens([{"input_ids": [4, 5, 4, 5]}], tokenizer(), framed=False)) == []


def test_a_tokenizer_that_doubles_a_special_token_is_certain():
    (finding,) = examine_tokens((), tokenizer(twice=True), framed=True)
    assert finding.certainty == "certain" and "twice before every text" in finding.what


def test_a_file_of_rows_is_looked_at_with_its_columns(tmp_path):
    rows = [f"{label},{text}" for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,text", *rows, "good,"]))
    found = examine_file(str(tmp_path / "rows.csv"), text=["text"], label="label")
    assert certainties(found.findings) == {"empty_rows": "likely"} and found.ill
    assert found.left_out == ("tokens: give --model",)


def test_the_command_on_a_file_tells_by_its_code_and_in_json(tmp_path, capsys):
    rows = [f"{label},{text}" for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,text", *rows]))
    (tmp_path / "test.csv").write_text("\n".join(["label,text", *rows[:20]]))
    command = ["doctor", str(tmp_path / "rows.csv"), "--label", "label", "--json"]
    assert main(command) == 0
    assert main([*command, "--validation", str(tmp_path / "test.csv"), "--html", str(tmp_path / "page")]) == 1
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    (finding,) = printed["findings"]
    assert finding["pitfall"] == "leakage" and finding["title"] == "training rows are in the validation data"
    assert "20 of 20 validation texts" in (tmp_path / "page/doctor.html").read_text()
