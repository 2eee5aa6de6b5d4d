"""Every example runs, with short arguments: most of them in one job of two workers, the demo as `make demo` does it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
DRIVER = Path(__file__).with_name("examples_driver.py")
DEADLINE = 100.0
DEMO_DEADLINE = 280.0  # a minute of computing, on processors that others may have as well

IN_ONE_JOB = {
    "from_byteps.py": ("--epochs 2 --fp16-pushpull", r"epoch 2: training accuracy [6-9]\d"),
    "from_horovod.py": ("--epochs 2", r"epoch 2: training accuracy [6-9]\d[^~]*points per rank; rank \d was the last"),
    "ddp_style.py": ("--steps 20", r"rank [01]: same weights on all 2 ranks"),
    "cross_barrier.py": ("--steps 30", r"rank [01]: same weights with and without the barrier"),
    "compression.py": (
        "--steps 20",
        r"rank [01]: thc4: 0\.[1-4]\d of the bytes, training accuracy [2-9]\d",
    ),
    "clipping_amp.py": ("--steps 20", r"rank [01]: same gradients on all 2 ranks"),
    "sharded_optimizer.py": ("--steps 20", r"rank [01] of 2: \d+ of \d+ bytes of state"),
    "slow_rank.py": (
        "--steps 30 --delay 5 --consistency ssp:s=2",
        r"rank [01]: \d+\.\d s; of 120 gradients of its parameters 0 came too late, and the oldest was [0-6] versions",
    ),
    "diloco.py": (
        "--steps 60 --every 10",
        r"rank 0: local SGD: 0\.1\d\d of the bytes[^~]*rank 0: SparseLoCo: 0\.0[01]\d of[^~]*"
        r"rank 0: streaming DiLoCo, 4 parts: 0\.1\d\d of the bytes",
    ),
    "server_functions.py": (
        "--size 300 --steps 60",
        r"rank 0: norm (\d+)\.\d+ of \1\.\d+, [1-9]\d? elements beyond 2",
    ),
    "batch_shares.py": (
        "--steps 12 --batch 48 --cost 0.5",
        r"equal: 24 \+ 24 images, \d+ ms a step[^~]*by speed: \d+ \+ \d+ images, \d+ ms a step",
    ),
    "hogwild.py": ("--epochs 2 --packages wsgiref asyncio", r"epoch 2: .* accuracy on other lines 9\d\.\d%"),
    "key_value.py": (
        "--epochs 2 --codec int8",
        r"epoch 2: [89]\d\.\d% of \d+ new pieces told right; a step took \d\.\d% of \d+ weights"
        r"[^~]*rank [01]: texts: \w+ [^~]*; at once: \w+ ",
    ),
    "recommender.py": (
        "--steps 60 --batch 256",
        r"step 60: area under the curve 0\.[67]\d+[^~]*servers keep \d+ rows of 6000000000 that there may be",
    ),
    "gpt.py": ("--steps 4 --batch 2 --width 32 --sample 20", r"gpt step 4: loss [34]\.\d+ .* communication"),
    "portable.py": ("", r"rank [01] of 2: \d+ bytes sent, all ranks agree"),
    "collectives_numpy.py": ("--elements 5000", r"rank [01] of 2: sums, parts and messages are right"),
}
"""Example -> short arguments, what must stand in its output."""

NEED_SERVERS = {"portable.py", "server_functions.py", "slow_rank.py", "key_value.py", "recommender.py"}
FUNCTIONS = "BYTEPS_LIKE_SERVER_IMPORTS=examples.server_functions"
IN_THE_DEMO = {"digits.py", "demo.py"}


def run(*command: str, deadline: float = DEADLINE) -> str:
    """The output of a command, which must end well."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_", "COLUMNS"))}
    environment = clean | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=deadline, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def drive(python: list[str], workers: int, commands: list[str], servers: int = 1) -> dict[str, str]:
    """Runs examples in one job; example -> its output."""
    counts = ["-n", str(workers), "-s", str(servers)]
    launcher = [sys.executable, "-m", "byteps_like", "run", "-q", *counts, "--env", FUNCTIONS, "--"] if workers else []
    out = run(*launcher, *python, str(DRIVER), *commands)
    parts: dict[str, str] = {}
    for rank in range(max(workers, 1)):
        own = "\n".join(line.partition("│ ")[2] for line in out.splitlines() if line.startswith(f"worker {rank} "))
        for part in re.split(r"^== ", own if workers else out, flags=re.MULTILINE)[1:]:
            name, _, text = part.partition("\n")
            parts[name] = parts.get(name, "") + text
    return parts


@pytest.fixture(scope="module")
def outputs(warm_python: list[str]) -> dict[str, str]:
    return drive(warm_python, 2, [f"{script} {arguments}" for script, (arguments, _) in IN_ONE_JOB.items()])


def test_every_example_is_run_here() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("_")}
    assert scripts == IN_ONE_JOB.keys() | IN_THE_DEMO


@pytest.mark.parametrize("script", IN_ONE_JOB)
def test_example_with_two_workers(outputs: dict[str, str], script: str) -> None:
    assert re.search(IN_ONE_JOB[script][1], outputs[script]), outputs[script]


def test_the_same_examples_without_servers(warm_python: list[str]) -> None:
    scripts = [script for script in IN_ONE_JOB if script not in NEED_SERVERS]
    found = drive(warm_python, 2, [f"{script} {IN_ONE_JOB[script][0]}" for script in scripts], servers=0)
    for script in scripts:
        assert re.search(IN_ONE_JOB[script][1], found[script]), found[script]


def test_a_slow_rank_under_other_consistencies(warm_python: list[str]) -> None:
    others = ["bsp", "backup:b=1", "asp"]
    found = drive(warm_python, 2, [f"slow_rank.py --steps 40 --delay 5 --consistency {one}" for one in others])
    for one in others:
        assert re.search(rf"{one}: \d+\.\d s, test accuracy [4-9]\d\.\d% · workers: 2", found["slow_rank.py"]), found


def test_every_example_explains_itself(warm_python: list[str]) -> None:
    scripts = sorted((IN_ONE_JOB.keys() | IN_THE_DEMO) - {"portable.py"})
    for script, text in drive(warm_python, 0, [f"{script} --help" for script in scripts]).items():
        assert "byteps-like run" in text or "make demo" in text, script
        assert "options:" in text, script


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("demo")
    return run(sys.executable, str(EXAMPLES / "demo.py"), "--out", str(out), deadline=DEMO_DEADLINE), out


of_the_demo = pytest.mark.timeout(DEMO_DEADLINE + 20)


@of_the_demo
def test_demo_trains_to_the_same_losses_in_one_process_and_in_four(demo: tuple[str, Path]) -> None:
    _, out = demo
    one, many = (json.loads((out / f"{name}.json").read_text()) for name in ("one", "distributed"))
    assert (one["workers"], many["workers"]) == (1, 2)
    assert len(one["loss"]) == len(many["loss"]) == 330
    assert max(abs(a - b) for a, b in zip(one["loss"], many["loss"], strict=True)) < 1e-6
    assert one["accuracy"] >= 0.97
    assert many["accuracy"] >= 0.97


@of_the_demo
def test_demo_counts_each_gradient_once_each_way(demo: tuple[str, Path]) -> None:
    _, out = demo
    many = json.loads((out / "distributed.json").read_text())
    gradients = 8 * (160 + 4640 + 65664 + 1290)  # float64; of the layers, in order
    expected = many["steps"] * many["workers"] * gradients
    # Above it: padding and control elements of the arena, the first broadcast, the accuracy.
    assert expected < many["payload_sent"] < 1.01 * expected
    assert expected < many["payload_received"] < 1.01 * expected


@of_the_demo
def test_demo_ends_with_a_summary_and_a_plot(demo: tuple[str, Path]) -> None:
    text, out = demo
    shown = text[text.index("byteps_like demo") :]
    for row in (
        "test accuracy",
        "largest difference in loss",
        "steps per second",
        "share of communication",
        "GB",
        "plot",
    ):
        assert row in shown
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
