from __future__ import annotations

from collections import UserDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from snugfit.core.tree import joined, leaves, map_tree, zip_tensors
from snugfit.errors import DataError

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Sample:
    image: Tensor
    meta: dict[str, Any]


def nested() -> dict[str, Any]:
    return {
        "a": torch.zeros(1),
        "deep": [torch.ones(2), (torch.full((3,), 2.0), "text")],
        "pair": Pair(torch.full((4,), 3.0), None),
        "sample": Sample(torch.full((5,), 4.0), {"x": torch.full((6,), 5.0)}),
        "number": 7,
    }


def test_leaves_are_the_tensors_depth_first() -> None:
    assert [tensor.numel() for tensor in leaves(nested())] == [1, 2, 3, 4, 5, 6]


def test_map_tree_rebuilds_every_container_with_its_type() -> None:
    doubled = map_tree(lambda tensor: tensor * 2, nested())
    assert [float(tensor[0]) for tensor in leaves(doubled)] == [0, 2, 4, 6, 8, 10]
    assert type(doubled["pair"]) is Pair and doubled["pair"].right is None
    assert type(doubled["sample"]) is Sample
    assert doubled["deep"][1][1] == "text" and doubled["number"] == 7


def test_a_sequence_without_tensors_is_one_leaf() -> None:
    seen: list[object] = []
    map_tree(lambda tensor: tensor, {"names": ["a", "b"], "x": [torch.zeros(1), "c"]}, seen.append)
    assert seen == [["a", "b"], "c"]


def test_a_models_output_of_transformers_keeps_its_type_and_attributes() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    made = outputs.SequenceClassifierOutput(logits=torch.zeros(2, 3), hidden_states=(torch.ones(2, 1),))
    mapped = map_tree(lambda tensor: tensor + 1, made)
    assert type(mapped) is type(made)
    assert mapped.logits.tolist() == [[1.0] * 3] * 2
    assert mapped.hidden_states[0].tolist() == [[2.0], [2.0]]
    assert mapped.loss is None


def test_a_mapping_of_another_class_is_made_from_a_mapping() -> None:
    mapped = map_tree(lambda tensor: tensor + 1, UserDict({"x": torch.zeros(1)}))
    assert type(mapped) is UserDict and float(mapped["x"]) == 1.0


def test_zip_tensors_gives_all_versions_of_each_tensor() -> None:
    one, other = nested(), map_tree(lambda tensor: tensor + 10, nested())
    columns = zip_tensors([one, other])
    assert len(columns) == 6
    assert all(float(second[0]) - float(first[0]) == 10 for first, second in columns)


def test_zip_tensors_refuses_other_structures() -> None:
    with pytest.raises(ValueError, match="zip"):
        zip_tensors([[torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]])


def test_structures_are_joined_along_the_rows() -> None:
    parts = [
        {"a": torch.full((rows, 2), float(rows)), "b": Pair(torch.arange(rows), None)} for rows in (2, 1)
    ]
    found = joined(parts)
    assert found["a"].tolist() == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    assert found["b"].left.tolist() == [0, 1, 0]


class FromNames(Mapping[str, Any]):
    """A mapping that is made from names and values, not from a dict."""

    def __init__(self, **entries: Any) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def test_a_default_dict_keeps_its_default() -> None:
    given = defaultdict(list, x=torch.zeros(2))
    mapped = map_tree(lambda tensor: tensor + 1, given)
    assert type(mapped) is defaultdict
    assert mapped["x"].tolist() == [1.0, 1.0] and mapped["new"] == []
    assert given["x"].tolist() == [0.0, 0.0]


def test_a_mapping_that_cannot_be_made_from_a_dict_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="a FromNames cannot be made again .* Return a dict from collate"):
        map_tree(lambda tensor: tensor + 1, FromNames(x=torch.zeros(2)))


def test_what_a_dataclass_computes_itself_is_computed_anew() -> None:
    @dataclass
    class Counted:
        rows: Tensor
        count: int = field(init=False)

        def __post_init__(self) -> None:
            self.count = len(self.rows)

    assert map_tree(lambda tensor: tensor[:2], Counted(torch.zeros(3))).count == 2


def test_packed_sequences_are_mapped_element_by_element_and_never_joined() -> None:
    packed = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    mapped = map_tree(lambda tensor: tensor * 2, {"x": packed})["x"]
    assert [each.tolist() for each in leaves(packed)] == [[1.0] * 5]
    assert mapped.data.tolist() == [2.0] * 5 and mapped.batch_sizes.tolist() == [2, 2, 1]
    with pytest.raises(RuntimeError, match="packed sequences cannot be joined"):
        joined([{"x": packed}, {"x": packed}])
