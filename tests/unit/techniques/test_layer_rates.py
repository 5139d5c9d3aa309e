from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.layer_rates import LayerRates, depths
from snugfit.techniques.learning.pattern_rates import PatternRates
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import refuses


class Encoder(nn.Module):
    """Embeddings, two blocks, a norm between them and a head, as models are written."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.positions = nn.Embedding(3, 4)  # behind the layers, and an embedding all the same
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


def test_impossible_settings_are_refused() -> None:
    refuses(LayerRates, decay=0.0)
    refuses(LayerRates, decay=1.1)


def rates(model: nn.Module, *techniques: LayerRates | PatternRates) -> dict[str, float]:
    step = Step(model, SGD(learning_rate=1.0), techniques=list(techniques))
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = step.optimizer.param_groups
    return {named[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}


def test_the_rate_falls_by_decay_from_the_head_to_the_embeddings() -> None:
    assert rates(Encoder(), LayerRates(decay=0.5)) == {
        "embed.weight": 0.125,
        "positions.weight": 0.125,
        "layers.0.weight": 0.25,
        "layers.0.bias": 0.25,
        "layers.1.weight": 0.5,
        "layers.1.bias": 0.5,
        "norm.weight": 1.0,
        "norm.bias": 1.0,
        "head.weight": 1.0,
        "head.bias": 1.0,
    }


def test_a_tied_head_is_an_embedding() -> None:
    model = Encoder()
    model.head.weight = model.embed.weight  # type: ignore[assignment]
    found = rates(model, LayerRates(decay=0.5))
    assert (found["embed.weight"], found["head.bias"]) == (0.125, 1.0)


def test_groups_tell_their_depth_and_keep_what_is_not_decayed_apart() -> None:
    step = Step(Encoder(), SGD(), techniques=[LayerRates()])
    assert {group["name"]: group["weight_decay"] for group in step.optimizer.param_groups} == {
        "embeddings decay": 0.0,
        "layer 1 decay": 0.0,
        "layer 2 decay": 0.0,
        "head decay": 0.0,
        "layer 1 no_decay": 0.0,
        "layer 2 no_decay": 0.0,
        "head no_decay": 0.0,
    }


def test_factors_of_layers_and_patterns_multiply() -> None:
    found = rates(Encoder(), LayerRates(decay=0.5), PatternRates({"*.bias": 3.0}))
    assert (found["layers.1.weight"], found["layers.1.bias"], found["head.bias"]) == (0.5, 1.5, 3.0)


@pytest.mark.parametrize("first", [0, 1])
def test_the_order_in_which_techniques_are_listed_does_not_change_the_groups(first: int) -> None:
    pair = [LayerRates(decay=0.5), PatternRates({"*.bias": 3.0})]
    step = Step(Encoder(), SGD(), techniques=[pair[first], pair[1 - first]])
    names = [group["name"] for group in step.optimizer.param_groups]
    assert names[0] == "embeddings decay" and "*.bias layer 1 no_decay" in names


def test_each_block_of_encoder_and_decoder_is_a_layer() -> None:
    names = ["shared", "encoder.block.0.layer.0.q", "encoder.block.0.layer.1.q", "encoder.block.1.layer.0.q"]
    names += ["encoder.norm", "decoder.block.0.layer.0.q", "decoder.block.1.layer.0.q", "lm_head"]
    assert list(depths(names).values()) == [0, 1, 1, 2, 2, 3, 4, 5]


def test_blocks_of_stages_are_layers_and_what_lies_between_belongs_to_its_stage() -> None:
    names = [f"stages.{stage}.blocks.{block}.w" for stage in range(2) for block in range(3)]
    names.insert(3, "stages.0.downsample.w")
    assert list(depths(["stem.w", *names, "classifier.1.w"]).values()) == [0, 1, 2, 3, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("downsampling", ["stages.{}.downsample", "{}"], ids=["timm", "torchvision"])
def test_what_comes_before_a_stage_is_of_its_first_block(downsampling: str) -> None:
    """As in timm 1.0.31, where the norm and the convolution before a stage have the rate of the stage's first block."""
    names, expected = ["stem.0.w", "stem.1.w"], [0, 0]
    blocks = 0
    for stage, count in enumerate((3, 3, 9, 3)):
        if downsampling == "{}":  # all are entries of one list
            before, stages = f"{2 * stage}", f"{2 * stage + 1}"
            names += [f"{before}.0.w", f"{before}.1.w"]
            expected += [0 if stage == 0 else blocks + 1] * 2
        else:
            before, stages = downsampling.format(stage), f"stages.{stage}.blocks"
            names += [f"{before}.0.w", f"{before}.1.w"] if stage else []
            expected += [blocks + 1] * 2 if stage else []
        for block in range(count):
            blocks += 1
            names.append(f"{stages}.{block}.conv.w")
            expected.append(blocks)
    found = depths([*names, "head.norm.w", "head.fc.w"])
    assert list(found.values()) == [*expected, 19, 19]


def test_a_head_of_several_layers_has_one_rate_where_the_model_has_blocks() -> None:
    names = [f"encoder.{layer}.mlp.w" for layer in range(3)]
    assert list(depths([*names, "classifier.0.w", "classifier.2.w"]).values()) == [1, 2, 3, 4, 4]


def test_a_stock_convnext_has_a_rate_for_each_of_its_blocks() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[3, 3, 9, 3])
    with torch.device("meta"):
        model = transformers.ConvNextForImageClassification(config)
    found = depths(name for name, _ in model.named_parameters())
    assert max(found.values()) - found["convnext.embeddings.patch_embeddings.weight"] == 19
    assert (
        found["convnext.encoder.stages.1.downsampling_layer.0.weight"]
        == found["convnext.encoder.stages.1.layers.0.dwconv.weight"]
    )
    assert found["convnext.encoder.stages.1.layers.0.dwconv.weight"] == 4


def test_a_backbone_in_a_sequential_with_its_head_has_its_own_layers() -> None:
    names = ["0.embed.w", *(f"0.layers.{layer}.w" for layer in range(4)), "1.w"]
    assert list(depths(names).values()) == [0, 1, 2, 3, 4, 5]


def test_the_last_layer_of_a_plain_sequential_is_its_head() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    assert rates(model, LayerRates(decay=0.5)) == {
        "0.weight": 0.5,
        "0.bias": 0.5,
        "2.weight": 1.0,
        "2.bias": 1.0,
    }


def test_a_stock_model_has_one_rate_a_layer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8, vocab_size=11
    )
    with torch.device("meta"):
        model = transformers.BertForSequenceClassification(config)
    found = depths(name for name, _ in model.named_parameters())
    assert found["bert.embeddings.LayerNorm.weight"] == 0
    assert found["bert.encoder.layer.2.output.dense.weight"] == 3
    assert found["bert.pooler.dense.weight"] == found["classifier.weight"] == 4


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(SettingError, match="^layer_rates: finds no layers in this model"):
        rates(nn.Linear(2, 2), LayerRates())
