"""What a GPU makes of byteps_like: kernels and staging next to the device's own copies, a GPT step next to gloo's DDP.

    python -m bench.gpu [--parts kernels staging gpt] [--codecs bf16 int8 thc4] [--index 0]
    python -m bench.gpu --device cpu        goes through all of it without a GPU, on the tests' software libcuda and
                                            small arrays, to see that it would run: its figures mean nothing

Kernels: every codec encodes and decodes one array of normal numbers (of sparse codecs, one of a hundred) by the recipes
that the engine uses, in turn with copies from memory to memory on the device. Rates are of the bytes that must be read
and written at least, fp32 and payload. The payloads are compared with the CPU's. Targets: 0.8 of the copy rate for
casts, int8, onebit, bitmap and fixed, 0.6 for THC's encoding.
Staging: partitions of 4 MiB down to, and up from, a mirror as arenas have it, in turn with one copy of memory that the
driver allocated page-locked. Target: 0.9 each way.
GPT: see gpt.py. Leaves out/gpu.jsonl.
"""

from __future__ import annotations

import argparse
import platform
import sys

from bench.gpu import gpt, rates
from bench.report import OUT, ROOT, write_json_lines
from byteps_like import _core, cuda
from byteps_like.torch.device import devices

PARTS = ("kernels", "staging", "gpt")
CODECS = ("bf16", "fp16", "fixed", "int8", "onebit", "bitmap", "fp8", "thc4", "topk", "randomk", "blocksparse", "coo")
# By device: of a GPU, and to go through on a CPU.
SIZES = {
    "megabytes": (256, 1), "repeats": (20, 1), "inner": (10, 1),
    "width": (1024, 128), "window": (256, 16), "batch": (8, 2), "steps": (8, 2), "rounds": (5, 1),
}  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--index", type=int, default=0, help="which of the GPUs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    parser.add_argument("--workers", type=int, default=2, help="processes of the GPT, on one GPU or one each")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for the GPT")
    for name, (gpu, cpu) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {gpu}; with --device cpu {cpu}")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name, defaults in SIZES.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, defaults[arguments.device == "cpu"])
    return arguments


def name_of(arguments: argparse.Namespace) -> str:
    """Of the device. Says why, and ends, where there is none."""
    if arguments.device == "cpu":
        return f"no GPU, {platform.machine()}"
    if why := devices.why_not() or cuda.why_not():
        sys.exit(f"python -m bench.gpu needs a GPU: {why} (--device cpu shows that it would run)")
    return _core.Gpu(arguments.index).name


def device_of(arguments: argparse.Namespace) -> rates.Device:
    """What kernels and staging are timed on."""
    if arguments.device == "cuda":
        return rates.Device.cuda(arguments.index)
    driver = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}" / "libsoftware_cuda.so"
    if not driver.exists():
        sys.exit("python -m bench.gpu --device cpu needs the software libcuda: `make test-native` builds it")
    return rates.Device.played(driver)


def main() -> None:
    arguments = parse_arguments()
    if arguments.folder:
        return gpt.rank(arguments)
    name, rows = name_of(arguments), []
    for part, measure in (("kernels", rates.kernels), ("staging", rates.staging)):
        if part in arguments.parts:
            found = measure(device_of(arguments), arguments)
            rates.show(name, found, arguments.device == "cpu")
            rows += found
    if "gpt" in arguments.parts:
        found = gpt.measure(arguments)
        gpt.show(name, arguments, found)
        rows += found
    config = {key: str(value) for key, value in vars(arguments).items()}
    write_json_lines(OUT / "gpu.jsonl", {**config, "gpu": name}, rows)
    print(f"wrote {OUT / 'gpu.jsonl'}")
    gpt.check([item for item in rows if item["part"] == "gpt"])
    return None


if __name__ == "__main__":
    main()
