"""The shipped workloads against the published counts, and what scaling and saving do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner import workloads
from byteps_like.planner.workload import Layer, Workload

PUBLISHED = {  # parameters, and billions of multiply-adds of one forward pass per unit
    "vgg16": (138_357_544, 15.47),  # torchvision's tables of parameters and GFLOPS, VGG16_Weights.IMAGENET1K_V1
    "resnet50": (25_557_032, 4.09),  # the same, ResNet50_Weights.IMAGENET1K_V1
    "bert-base": (110_106_428, None),  # BertForPreTraining, bert-base-uncased ("110M" in the paper)
    "bert-large": (336_226_108, None),  # BertForPreTraining, bert-large-uncased ("340M" in the paper)
    "gpt2": (124_439_808, None),  # the released 124M checkpoint
}


@pytest.mark.parametrize("name", workloads.names())
def test_counts_are_the_published_ones(name: str) -> None:
    parameters, multiply_adds = PUBLISHED[name]
    workload = workloads.load(name)
    assert workload.parameters == parameters
    if multiply_adds is not None:
        assert sum(layer.forward for layer in workload.layers) / 2e9 == pytest.approx(multiply_adds, rel=0.005)


@pytest.mark.parametrize(("name", "attention"), [("bert-base", 4 * 128 * 768 * 12), ("gpt2", 4 * 1024 * 768 * 12)])
def test_a_token_costs_two_flops_per_weight_it_meets(name: str, attention: int) -> None:
    """Kaplan et al. 2020, section 2.1: 2 N forward and twice that backward, N without the embeddings."""
    blocks = [layer for layer in workloads.load(name).layers if layer.name.startswith(("h.", "layer."))]
    weights = sum(shape[0] * shape[1] for layer in blocks for _, shape in layer.parameters if len(shape) == 2)
    assert weights == 12 * 12 * 768 * 768
    assert sum(layer.forward for layer in blocks) == 2 * weights + attention
    assert all(layer.backward == 2 * layer.forward for layer in blocks)


@pytest.mark.parametrize(("name", "head", "words"), [("gpt2", "head", 50257), ("bert-base", "predictions", 30522)])
def test_a_head_that_shares_the_words_has_nothing_that_could_be_put_off(name: str, head: str, words: int) -> None:
    """Its matrix is the embedding's, whose gradient is complete at the input: backward goes through it in one piece."""
    layers = {layer.name: layer for layer in workloads.load(name).layers}
    assert not layers[head].parameters and layers[head].backward == 2 * layers[head].forward > 0
    matrices = [
        shape for layer in layers.values() for _, shape in layer.parameters if words in shape and len(shape) == 2
    ]
    assert matrices == [next(iter(layers.values())).parameters[0][1]]


def test_names_of_parameters_are_unique() -> None:
    for name in workloads.names():
        found = [parameter for layer in workloads.load(name).layers for parameter, _ in layer.parameters]
        assert len(found) == len(set(found)), name


@pytest.mark.parametrize("name", workloads.names())
def test_scaled_keeps_the_shape(name: str) -> None:
    whole = workloads.load(name)
    small = whole.scaled(total_bytes=whole.nbytes / 50, compute_seconds=0.5)
    assert small.nbytes == pytest.approx(whole.nbytes / 50, rel=0.02)
    assert small.compute == pytest.approx(0.5)
    for before, after in zip(whole.layers, small.layers, strict=True):
        assert after.compute / small.compute == pytest.approx(before.compute / whole.compute)
        assert [len(shape) for _, shape in after.parameters] == [len(shape) for _, shape in before.parameters]
    assert whole.scaled() == whole


def test_saved_and_read_again(tmp_path: Path) -> None:
    workload = Workload(
        "two", (Layer("a", (("a.w", (2, 3)), ("s", ())), 0.25, 0.5), Layer("b", (), 1.0, 0.0)), 8, "images"
    )
    workload.save(tmp_path / "two.json")
    assert Workload.read(tmp_path / "two.json") == workload
    assert workload.nbytes == 28


NEGATIVE = '{"name":"a","parameters":[["w",[-2]]],"forward":0,"backward":0}'


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": "x"}', f'{{"name":"x","batch":1,"unit":"u","layers":[{NEGATIVE}]}}']
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"x\.json is not a saved workload"):
        Workload.read(tmp_path / "x.json")
    with pytest.raises(InvalidArgumentError, match=r"can't read the workload .*none\.json"):
        Workload.read(tmp_path / "none.json")


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match="there are vgg16, resnet50"):
        workloads.load("alexnet")
    with pytest.raises(InvalidArgumentError, match="total_bytes=0"):
        workloads.load("vgg16").scaled(total_bytes=0)
