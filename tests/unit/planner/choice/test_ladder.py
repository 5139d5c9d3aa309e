"""The ladder: what an expert would try, with what a device and a recipe have."""

from __future__ import annotations

from snugfit.core.technique import Fidelity, Technique
from snugfit.planner.choice.ladder import FORMATS, PLACEMENTS, formats, goes, placed
from snugfit.planner.choice.rungs import coarser, label, level_of, placements, together
from snugfit.planner.devices.hardware import find_device
from snugfit.techniques import find

ADAMW = find("adamw")()


def rungs(device: str) -> tuple[Technique, ...]:
    found = find_device(device)
    return (*placements(found), *(each for level in Fidelity if level for each in coarser(level, found)))


def names(sets: list[tuple[Technique, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(label, each)) for each in sets]


def test_each_name_is_that_of_a_rung() -> None:
    known = {label(each) for device in ("t4", "rtx4090") for each in rungs(device)}
    assert {name for names in (*FORMATS, *PLACEMENTS) for name in names} <= known


def test_formats_are_without_what_the_device_cannot_compute() -> None:
    old, new = (names(formats([ADAMW], rungs(device))) for device in ("t4", "rtx4090"))
    assert ("bf16",) in new and ("fp16",) not in new and ("lora", "nf4", "pure_bf16") in new
    assert ("fp16",) in old and ("lora", "nf4", "fp16") in old
    assert ("fp16_master_weights",) in old and ("lora", "nf4", "fp16_master_weights") in old
    assert not any("bf16" in name for each in old for name in each)


def test_a_recipe_that_names_its_precision_keeps_it() -> None:
    bf16 = find("bf16")()
    found = formats([ADAMW, bf16], rungs("rtx4090"))
    assert ("lora", "nf4") in names(found)
    for each in found:
        assert [one for one in together([ADAMW, bf16], each) if one.card.precision] == [bf16]


def test_formats_are_none_twice_and_from_the_most_faithful_on() -> None:
    found = formats([ADAMW], rungs("a100-80"))
    assert len(found) == len(set(found))
    levels = [level_of(together([ADAMW], each)) for each in found if each]
    assert levels == sorted(levels)


def test_what_is_done_to_frozen_weights_is_done_beneath_adapters_alone() -> None:
    lora, quantised, streamed = (find(name)() for name in ("lora", "nf4", "weight_streaming"))
    assert not goes([ADAMW], (), quantised) and not goes([ADAMW], (), streamed)
    assert goes([ADAMW], (lora,), quantised) and goes([ADAMW, lora], (), streamed)
    assert not any("weight_streaming" in each for each in names(placed([ADAMW], (), rungs("rtx4090"))))
    assert any("weight_streaming" in each for each in names(placed([ADAMW], (lora,), rungs("rtx4090"))))


def test_what_goes_with_neither_the_recipe_nor_the_format_is_left_out() -> None:
    clip = find("clip_norm")()  # looks at all gradients at once
    found = names(placed([ADAMW, clip], (), rungs("rtx4090")))
    assert not any("optimizer_in_backward" in each for each in found)
    assert found[0] == () and ("chunked_loss", "recompute") in found
