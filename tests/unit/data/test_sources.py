"""Reading files and functions: every fault found, nothing converted, every message of use."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from snugfit.data.labels.class_names import label_warnings
from snugfit.data.sources import check_fingerprints, find_file, read_table
from snugfit.errors import DataError


def reasons(table) -> list[tuple[int, str]]:
    return [(fault.line, fault.reason) for fault in table.faults]


def test_rows_lines_and_fingerprint_of_a_csv(write):
    path = write("a.csv", 'text,label\n"two\nlines, one row",x\nplain,y\n')
    table = read_table(path)
    assert table.columns == ("text", "label")
    assert table.rows == [{"text": "two\nlines, one row", "label": "x"}, {"text": "plain", "label": "y"}]
    assert table.lines == [2, 4]
    assert table.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert table.faults == ()


@pytest.mark.parametrize("word", ["NA", "null", "None", "NaN", "", "1e400", "#N/A"])
def test_csv_text_stays_the_text_it_is(write, word):
    assert read_table(write("a.csv", f"text,label\n{word},x\n")).rows == [{"text": word, "label": "x"}]


def test_a_byte_order_mark_is_not_part_of_the_first_column(write):
    assert read_table(write("a.csv", b"\xef\xbb\xbftext,label\na,b\n")).columns == ("text", "label")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_separates_rows(write, newline):
    table = read_table(write("a.csv", newline.join(["t,l", "a,b", "c,d", ""])))
    assert [list(row.values()) for row in table.rows] == [["a", "b"], ["c", "d"]]


def test_characters_that_only_python_takes_for_line_ends_do_not_end_rows(write):
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f"
    assert read_table(write("a.csv", f"t,l\n{text},x\n")).rows == [{"t": text, "l": "x"}]
    assert read_table(write("a.jsonl", json.dumps({"t": text}, ensure_ascii=False))).rows == [{"t": text}]


def test_latin_1_bytes_are_reported_with_their_line_and_cost_only_their_row(write):
    table = read_table(write("a.csv", b't,l\ngood,x\n"one\ncaf\xe9",y\nfine,z\n'))
    assert [row["t"] for row in table.rows] == ["good", "fine"]
    assert reasons(table) == [(3, "not UTF-8")]
    assert "byte 0xe9 on line 4" in table.faults[0].detail
    assert "in Latin-1 it would be 'é'" in table.faults[0].detail


def test_ragged_rows_are_counted_against_the_header(write):
    table = read_table(write("a.csv", "t,l\na,b\nc\nd,e,f\n\ng,h\n"))
    assert [row["t"] for row in table.rows] == ["a", "g"]
    assert reasons(table) == [(3, "ragged row"), (4, "ragged row")]
    assert "1 field, the header has 2" in table.faults[0].detail


def test_a_quote_that_is_never_closed_costs_its_own_row_only(write):
    table = read_table(write("a.csv", 't,l\na,b\n"c,d\ne,f\ng,h\n'))
    assert [row["t"] for row in table.rows] == ["a", "e", "g"]
    assert reasons(table) == [(3, "broken quotes")]


def test_a_stray_quote_before_a_quoted_field_costs_its_own_row_only(write):
    table = read_table(write("a.csv", 't,l\n"c,d\ne,f\n"g, with comma",h\ni,j\n'))
    assert [row["t"] for row in table.rows] == ["e", "g, with comma", "i"]
    assert reasons(table) == [(2, "broken quotes")]


def test_a_field_of_more_than_128_kib_is_read_and_the_global_limit_kept(write):
    long = "x" * 200_000
    before = csv.field_size_limit(1000)
    try:
        assert read_table(write("a.csv", f"t,l\n{long},b\n")).rows[0]["t"] == long
        assert csv.field_size_limit() == 1000
    finally:
        csv.field_size_limit(before)


def test_a_nul_byte_costs_its_row(write):
    table = read_table(write("a.csv", "t,l\n" + "fine,x\n" * 20 + "b\0d,y\n"))
    assert len(table.rows) == 20
    assert reasons(table) == [(22, "NUL byte")]


def test_tab_separated_values_are_read_with_commas_as_text(write):
    assert read_table(write("a.tsv", "t\tl\na, b\tx\n")).rows == [{"t": "a, b", "l": "x"}]


def test_broken_json_lines_are_found_and_the_others_kept(write):
    lines = ['{"t": "a", "l": 1}', '{"t": "b", ', "", "[1, 2]", '{"t": "c", "extra": null}', "[" * 100_000]
    table = read_table(write("a.jsonl", "\n".join(lines)))
    assert table.rows == [{"t": "a", "l": 1}, {"t": "c", "extra": None}]
    assert table.columns == ("t", "l", "extra")
    assert reasons(table) == [(2, "broken JSON"), (4, "broken JSON"), (6, "broken JSON")]
    assert table.lines == [1, 5]


def test_lines_of_a_text_file_keep_their_breaks(write):
    table = read_table(write("a.txt", b"one\r\ntwo\n\nca\xe9\nlast"))
    assert [row["text"] for row in table.rows] == ["one\r\n", "two\n", "\n", "last"]
    assert reasons(table) == [(4, "not UTF-8")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b" \n\n", "is empty"),
        ("a.csv", b"text,label\n", "a header and no rows"),
        ("a.csv", b"text,text\na,b\n", "column 'text' more than once"),
        (
            "a.csv",
            "te\u00e9,label\na,b\n".encode("latin-1"),
            "a.csv:1: the header cannot be read.* iconv -f latin1 -t utf-8 .*a.csv",
        ),
        ("a.csv", b"PK\x03\x04" + bytes(range(256)), "Excel"),
        ("a.csv", b"PAR1" + bytes(range(256)), "Parquet"),
        ("a.csv", bytes(range(256)) * 4, "is binary"),
        (
            "a.csv",
            "text,label\na,b\n".encode("utf-16"),
            "UTF-16.* iconv -f utf-16 -t utf-8 .*a.csv > a-utf8.csv",
        ),
        ("a.csv.gz", b"", "compressed.*: gunzip -k .*a.csv.gz$"),
        ("a.csv.bz2", b"", "compressed.*: bunzip2 -k .*a.csv.bz2$"),
        ("a.csv.xz", b"", "compressed.*: unxz -k .*a.csv.xz$"),
        ("a.csv.zst", b"", "compressed.*: unzstd -k .*a.csv.zst$"),
        ("a.zip", b"", "compressed.*: unzip .*a.zip$"),
        ("a.xml", b"<a/>", "no known kind"),
        ("a.json", b'[{"a": 1},\n{"a": 2]', "a JSON list that cannot be read on line 2"),
        ("a.parquet", b"PAR1" + bytes(range(256)), "no Parquet file that can be read"),
        ("a.jsonl", b'[\n{"a": 1},\n{"a": 2}\n]', "one JSON list"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_its_name(write, name, content, message):
    path = write(name, content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, setting="data.train")
    assert str(caught.value).startswith("data.train: ")
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "t;l\na, b;x\n"), ("a.csv", "t|l\na, b|x\n"), ("a.tsv", 't,l\n"a, b",x\n')],
)
def test_the_separator_is_the_one_that_the_header_has(write, name, text):
    assert read_table(write(name, text)).rows == [{"t": "a, b", "l": "x"}]


def test_a_json_list_is_rows_and_a_json_file_of_lines_too(write):
    table = read_table(write("a.json", '[\n {"t": "a"},\n 3, {"t": "b", "l": 1}]'))
    assert (table.rows, table.lines, table.columns) == ([{"t": "a"}, {"t": "b", "l": 1}], [1, 3], ("t", "l"))
    assert reasons(table) == [(2, "broken JSON")]
    assert read_table(write("b.json", '{"t": "a"}\n{"t": "b"}\n')).rows == [{"t": "a"}, {"t": "b"}]


def test_a_parquet_file_is_rows_with_values_of_their_kinds(write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rows = [{"t": "a", "n": 1, "x": 0.5, "many": ["b"]}, {"t": None, "n": None, "x": None, "many": None}]
    write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert (table.rows, table.columns, table.lines) == (rows, ("t", "n", "x", "many"), [1, 2])
    cut = (tmp_path / "a.parquet").read_bytes()[:-20]
    with pytest.raises(DataError, match=r"b\.parquet is no Parquet file that can be read"):
        read_table(write("b.parquet", cut))


def test_a_missing_file_names_the_place_and_the_nearest_file(write, tmp_path):
    write("train.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match=r"no file trian\.csv \(looked for .*Did you mean 'train\.csv'\?"):
        read_table("trian.csv", folder=tmp_path)
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)


def test_a_relative_path_is_looked_for_in_the_folder(write, tmp_path):
    write("a.csv", "t,l\na,b\n")
    table = read_table("a.csv", folder=tmp_path)
    assert table.source == "a.csv"
    assert len(table.rows) == 1


def test_rows_of_a_python_function_named_by_its_path(write, tmp_path):
    write("my_rows_one.py", "def rows():\n    yield {'t': 'a', 'l': 1}\n    yield {'t': 'b', 'l': 2}\n")
    table = read_table("my_rows_one:rows", folder=tmp_path)
    assert table.rows == [{"t": "a", "l": 1}, {"t": "b", "l": 2}]
    assert table.lines == [1, 2]


def test_the_fingerprint_of_a_function_is_that_of_its_rows():
    rows = [{"t": "a"}, {"t": "b"}]
    first = read_table(lambda: rows).sha256
    assert first == read_table(lambda: iter(rows)).sha256
    assert first != read_table(lambda: rows[::-1]).sha256


@pytest.mark.parametrize("changed", [1_500, 0])
def test_the_fingerprint_of_rows_with_arrays_is_of_all_their_numbers(changed):
    """Their text leaves out most of them, and rounds the others."""
    first, second = np.zeros(3_000), np.zeros(3_000)
    second[changed] = 1e-9
    assert read_table(lambda: [{"wave": first}]).sha256 == read_table(lambda: [{"wave": first.copy()}]).sha256
    assert read_table(lambda: [{"wave": first}]).sha256 != read_table(lambda: [{"wave": second}]).sha256


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda: [], "gave no rows"),
        (lambda: ["t", "l"], "row 1 of .* is a str"),
        (lambda: [{"t": 1}, {2: "x"}], "row 2 of"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: None, "failed: TypeError"),
        (lambda: nn.Linear(1, 1), "gave a Linear, which has no rows.*beside task: python"),
    ],
)
def test_a_function_that_gives_no_rows_is_refused(rows, message):
    with pytest.raises(DataError, match=message):
        read_table(rows)


def test_a_changed_data_file_is_named(write):
    path = write("a.csv", "t,l\na,b\n")
    saved = {"a.csv": read_table(path).sha256}
    check_fingerprints(saved, dict(saved))
    write("a.csv", "t,l\na,c\n")
    with pytest.raises(DataError, match=r"a\.csv has changed since this run began"):
        check_fingerprints(saved, {"a.csv": read_table(path).sha256})
    with pytest.raises(DataError, match="is not used any more.* snugfit resume runs/1 --accept-changes data"):
        check_fingerprints(saved, {}, "runs/1")


def test_a_data_file_that_lies_elsewhere_is_the_same_if_its_name_and_content_are():
    saved = {"/old/a.csv": "12", "/old/b.csv": "34"}
    check_fingerprints(saved, {"/new/a.csv": "12", "/new/b.csv": "34"})
    with pytest.raises(DataError, match=r"/old/b\.csv is not used any more"):
        check_fingerprints(saved, {"/new/a.csv": "12", "/new/b.csv": "35"})
    with pytest.raises(DataError, match=r"/old/b\.csv is not used any more"):
        check_fingerprints(saved, {"/new/a.csv": "12", "/new/c.csv": "34"})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=8))
def test_what_the_csv_module_writes_comes_back(tmp_path, rows):
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerows([("t", "l"), *rows])
    path = tmp_path / "round.csv"
    path.write_bytes(out.getvalue().encode())
    table = read_table(path)
    assert [(row["t"], row["l"]) for row in table.rows] == rows
    assert table.faults == ()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1, max_size=200), kind=st.sampled_from([".csv", ".tsv", ".jsonl", ".txt"]))
def test_no_bytes_whatever_raise_anything_but_a_data_error(tmp_path, content, kind):
    path = tmp_path / f"any{kind}"
    path.write_bytes(b"t,l\n" + content)
    try:
        table = read_table(path)
    except DataError:
        return
    assert len(table.rows) == len(table.lines)
    assert table.rows or table.faults


def test_damaged_rows_never_take_good_rows_with_them(write):
    """Whatever is wrong with some rows, the untouched ones are read as they are."""
    draw = random.Random(0)
    damages = [b"\xff\xfe", b"", b"only", b"a,b,c,d", b'"open,', b'"shut"x,y', b"nul\0,x"]
    for _ in range(200):
        lines, good = [b"t,l"], []
        for row in range(10):
            if draw.random() < 0.3:
                lines.append(draw.choice(damages))
            else:
                good.append(f"row {row}")
                lines.append(f"row {row},x".encode())
        table = read_table(write("a.csv", b"\n".join(lines) + b"\n"))
        assert [row["t"] for row in table.rows] == good


def test_a_link_that_leads_nowhere_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").symlink_to("moved.csv")
    with pytest.raises(DataError, match="rows.csv is a link to moved.csv, where there is no file"):
        find_file("rows.csv", "data.train", tmp_path)


def test_labels_that_are_shown_alike_are_said_to_be_several() -> None:
    (warning,) = label_warnings(("caf\u00e9", "cafe\u0301", "tea"), 9, "label")
    assert warning.startswith(r"the labels 'caf\xe9', 'cafe\u0301' differ only in")
