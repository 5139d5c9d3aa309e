"""Rows of data frames: their columns have names of text, each of them one."""

from __future__ import annotations

from typing import Any

import pytest

from snugfit.data.frames import frame_rows
from snugfit.errors import DataError

pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize("names", [["a", "a"], [1, "1"]])
def test_columns_that_share_a_name_are_refused_and_not_dropped(names: list[Any]) -> None:
    with pytest.raises(DataError, match="more than once"):
        frame_rows(pandas.DataFrame([[1, 2]], columns=names))


def test_columns_that_are_named_by_levels_have_names_of_text() -> None:
    rows = frame_rows(pandas.DataFrame([[1, 2]], columns=pandas.MultiIndex.from_product([["a"], ["b", "c"]])))
    assert rows is not None and list(rows) == [{"('a', 'b')": 1, "('a', 'c')": 2}]
