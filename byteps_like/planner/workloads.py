"""The shipped workloads: layer shapes of published models, FLOPs counted from the shapes.

A multiply-add is two FLOPs. Backward is twice forward (gradient of the input, gradient of the weights), for a
convolution at the input once. Normalisations, activations and softmax are not counted: they are well under 2 % of the
sums. A layer here is one matrix multiplication or convolution with what belongs to it (bias, normalisation): the grain
at which gradients become ready; a head whose matrix is the embedding's has none of its own. `forward` and `backward`
are FLOPs per unit, an image or a token.

Sources:
- VGG-16: Simonyan and Zisserman 2015, table 1, column D; 224 x 224 images. 138,357,544 parameters.
- ResNet-50: He et al. 2016, table 1, with the stride of 2 in the 3 x 3 convolution, as torchvision has it.
  25,557,032 parameters.
- BERT: Devlin et al. 2019, section 3 (L=12, H=768, A=12; L=24, H=1024, A=16), pre-training with both heads and tied
  word embeddings, 128 tokens of which 20 are predicted. 110,106,428 and 336,226,108 parameters.
- GPT-2 small: Radford et al. 2019, table 2 (L=12, d=768), 50,257 words, 1,024 tokens, tied embeddings.
  124,439,808 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.workload import Layer, Workload

Parameters = tuple[tuple[str, tuple[int, ...]], ...]

BERT_SEQUENCE = 128
BERT_PREDICTED = 20
BERT_WORDS = 30522
BERT_POSITIONS = 512
GPT2_SEQUENCE = 1024
GPT2_WORDS = 50257


def load(name: str) -> Workload:
    """The shipped workload `name`. Raises InvalidArgumentError, listing them all, for another."""
    if name not in _MODELS:
        raise InvalidArgumentError(f"no workload {name!r} is shipped; there are {', '.join(names())}")
    return _MODELS[name]()


def names() -> tuple[str, ...]:
    """All that `load` takes."""
    return tuple(_MODELS)


def _vgg16() -> Workload:
    layers: list[Layer] = []
    channels, side = 3, 224
    for stage, (width, depth) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], 1):
        for number in range(1, depth + 1):
            layers.append(_convolution(f"conv{stage}_{number}", channels, width, 3, side, bias=True))
            channels = width
        side //= 2
    for number, (inputs, outputs) in enumerate([(channels * side * side, 4096), (4096, 4096), (4096, 1000)], 6):
        layers.append(_linear(f"fc{number}", inputs, outputs))
    return _workload("vgg16", layers, 32, "images")


def _resnet50() -> Workload:
    layers = [_convolution("conv1", 3, 64, 7, 112)]
    channels, side = 64, 56
    for stage, (width, depth) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], 2):
        for block in range(depth):
            halves = stage > 2 and block == 0
            layers += _bottleneck(f"conv{stage}_{block + 1}", channels, width, side, side // 2 if halves else side)
            side = side // 2 if halves else side
            channels = 4 * width
    layers.append(_linear("fc", channels, 1000))
    return _workload("resnet50", layers, 32, "images")


def _bottleneck(name: str, channels: int, width: int, side: int, out: int) -> Iterator[Layer]:
    yield _convolution(f"{name}.a", channels, width, 1, side)
    yield _convolution(f"{name}.b", width, width, 3, out)
    yield _convolution(f"{name}.c", width, 4 * width, 1, out)
    if channels != 4 * width:
        yield _convolution(f"{name}.shortcut", channels, 4 * width, 1, out)


def _bert(name: str, blocks: int, hidden: int, sequences: int) -> Workload:
    tables = (
        ("word_embeddings.weight", (BERT_WORDS, hidden)),
        ("position_embeddings.weight", (BERT_POSITIONS, hidden)),
        ("token_type_embeddings.weight", (2, hidden)),
    )
    layers = [Layer("embeddings", tables + _norm("LayerNorm", hidden), 2.0 * hidden, 3.0 * hidden)]
    for block in range(blocks):
        layers += _transformer_block(f"layer.{block}", hidden, BERT_SEQUENCE, norm_first=False)
    layers.append(_linear("pooler", hidden, hidden, share=1 / BERT_SEQUENCE))
    share = BERT_PREDICTED / BERT_SEQUENCE
    layers.append(_linear("transform", hidden, hidden, share=share, extra=_norm("LayerNorm", hidden)))
    words = 2.0 * hidden * BERT_WORDS * share  # the matrix is that of the word embeddings: ready with them
    layers.append(Layer("predictions", (), words, 2 * words))
    layers.append(Layer("decoder", (("decoder.bias", (BERT_WORDS,)),), 0.0, 0.0))
    layers.append(_linear("seq_relationship", hidden, 2, share=1 / BERT_SEQUENCE))
    return _workload(name, layers, sequences * BERT_SEQUENCE, "tokens")


def _gpt2() -> Workload:
    hidden = 768
    tables = (("wte.weight", (GPT2_WORDS, hidden)), ("wpe.weight", (GPT2_SEQUENCE, hidden)))
    layers = [Layer("embeddings", tables, 1.0 * hidden, 2.0 * hidden)]
    for block in range(12):
        layers += _transformer_block(f"h.{block}", hidden, GPT2_SEQUENCE, norm_first=True)
    words = 2.0 * hidden * GPT2_WORDS  # the matrix is wte, whose gradient is complete at the input only
    layers.append(Layer("ln_f", _norm("ln_f", hidden), 0.0, 0.0))
    layers.append(Layer("head", (), words, 2 * words))
    return _workload("gpt2", layers, 8 * GPT2_SEQUENCE, "tokens")


def _transformer_block(name: str, hidden: int, sequence: int, *, norm_first: bool) -> Iterator[Layer]:
    """Per token: the scores and their weighted sum are two products of `sequence` by `hidden`, and no weights."""
    scores = 4.0 * sequence * hidden
    before, after = (_norm("norm", hidden), ()) if norm_first else ((), _norm("norm", hidden))
    yield _linear(f"{name}.attention", hidden, 3 * hidden, extra=before, more=scores)
    yield _linear(f"{name}.projection", hidden, hidden, extra=after)
    yield _linear(f"{name}.up", hidden, 4 * hidden, extra=before)
    yield _linear(f"{name}.down", 4 * hidden, hidden, extra=after)


def _convolution(name: str, inputs: int, outputs: int, kernel: int, side: int, *, bias: bool = False) -> Layer:
    """`side` is the output's. Without a bias there is a batch normalisation behind it."""
    weight = ((f"{name}.weight", (outputs, inputs, kernel, kernel)),)
    tail = ((f"{name}.bias", (outputs,)),) if bias else _norm(f"{name}.norm", outputs)
    flops = 2.0 * inputs * outputs * kernel * kernel * side * side
    return Layer(name, weight + tail, flops, 2 * flops)


def _linear(
    name: str, inputs: int, outputs: int, *, share: float = 1.0, extra: Parameters = (), more: float = 0.0
) -> Layer:
    """`share` of the units pass it; `more` FLOPs per unit come on top."""
    parameters: Parameters = ((f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,)))
    flops = 2.0 * inputs * outputs * share + more
    named = tuple((f"{name}.{part}", shape) for part, shape in extra)
    return Layer(name, parameters + named, flops, 2 * flops)


def _norm(name: str, width: int) -> Parameters:
    return (f"{name}.weight", (width,)), (f"{name}.bias", (width,))


def _workload(name: str, layers: list[Layer], batch: int, unit: str) -> Workload:
    first = layers[0]
    if first.name.startswith("conv"):  # nobody wants the gradient of the image
        layers[0] = Layer(first.name, first.parameters, first.forward, first.forward)
    return Workload(name, tuple(layers), batch, unit)


_MODELS: dict[str, Callable[[], Workload]] = {
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "bert-base": lambda: _bert("bert-base", 12, 768, 32),
    "bert-large": lambda: _bert("bert-large", 24, 1024, 32),
    "gpt2": _gpt2,
}
