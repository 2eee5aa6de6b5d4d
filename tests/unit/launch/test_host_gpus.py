"""GPUs as the kernel shows them, of a tree that is laid out as it does, and the cores of their workers."""

from __future__ import annotations

import os

import pytest

from byteps_like.launch.hosts import gpus
from byteps_like.launch.hosts.gpus import cards, cores_for, parse_cores, visible
from byteps_like.launch.hosts.host import Grade


@pytest.fixture
def found(tmp_path):
    for number, (pci, node, cores) in enumerate([("0000:17:00.0", "0", "0-3,8-9"), ("0000:CA:00.0", "1", "4-7")]):
        uuid = f"GPU-3c2{number}f937-d72c-4106"
        known, device = tmp_path / "known" / pci, tmp_path / "devices" / pci.lower()
        known.mkdir(parents=True)
        device.mkdir(parents=True)
        (known / "information").write_text(f"Model: \t\t Model {number}\nIRQ:   \t\t 12\nGPU UUID: \t {uuid}\n")
        for name, text in (("numa_node", node), ("local_cpulist", cores), ("current_link_speed", "32.0 GT/s PCIe")):
            (device / name).write_text(text + "\n")
    return cards(tmp_path / "known", tmp_path / "devices")


def test_what_the_kernel_tells(found):
    assert [(card.model, card.pci, card.node, card.link) for card in found] == [
        ("Model 0", "0000:17:00.0", 0, ""), ("Model 1", "0000:CA:00.0", 1, "")
    ]  # fmt: skip
    assert found[0].cores == {0, 1, 2, 3, 8, 9}


def test_workers_run_beside_their_gpu(found):
    everything = frozenset(range(10))
    assert [cores_for(rank, found, everything) for rank in range(3)] == [found[n].cores for n in (0, 1, 0)]
    assert cores_for(0, found, frozenset({2, 4})) == {2}
    assert cores_for(1, found, frozenset({0, 1})) == frozenset(), "none of its cores may be used"
    assert cores_for(0, found[:1], found[0].cores) == frozenset(), "there are no others"
    assert cores_for(0, [], everything) == frozenset()


def test_visible_devices_are_renumbered(found):
    assert visible(found, {}) == found
    assert visible(found, {"CUDA_VISIBLE_DEVICES": "1, 0"}) == found[::-1]
    assert visible(found, {"CUDA_VISIBLE_DEVICES": ""}) == []
    assert visible(found, {"CUDA_VISIBLE_DEVICES": "1,-1,0"}) == found[1:], "CUDA sees none behind one that isn't there"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("GPU-3c21", [1]),
        ("GPU-3c21f937-d72c-4106,GPU-3c20", [1, 0]),
        ("GPU-3c2", []),  # of both
        ("GPU-ffff,0", []),
        ("MIG-GPU-3c21f937-d72c-4106/1/0", [1]),
        ("MIG-8932f937-d72c-4106", []),  # whose GPU it is only the driver knows
    ],
)
def test_visible_devices_have_names(found, text, numbers):
    assert visible(found, {"CUDA_VISIBLE_DEVICES": text}) == [found[number] for number in numbers]


def test_lists_of_cores_are_bounded():
    assert parse_cores("") == frozenset()
    with pytest.raises(ValueError, match="not a list of cores"):
        parse_cores("0-99999999")


def test_doctor_shows_them(found, monkeypatch):
    monkeypatch.setattr(gpus, "cards", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    first, second = gpus.rows()
    assert (first.state, second.state) == (Grade.OK, Grade.WARN)
    assert "Model 0, 0000:17:00.0, workers on any core" in first.value
    assert "cpuset" in second.fix
