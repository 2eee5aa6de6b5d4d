"""Cuts on disk: which directories are one, what is said of damaged ones, what a full disk does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import byteps_like.torch as bps
from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError, SystemCallError
from byteps_like.torch.elastic.cuts.content import CutContent
from byteps_like.torch.elastic.cuts.manifest import folder_of, keep_newest, newest, read_manifest
from byteps_like.torch.elastic.cuts.random_states import random_states
from byteps_like.torch.elastic.cuts.shares import read_common
from byteps_like.torch.elastic.cuts.writing import CutPart

RANKS = 3


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    bps.init()
    yield
    bps.shutdown()


def trained(seed: int = 1) -> bps.elastic.TorchState:
    """A state with something of everything."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    sampler = bps.elastic.ElasticSampler(range(50))
    sampler.record_batch(0, 7)
    state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=seed, seen={"a": (1, [2.5, None])})
    state.save()
    return state


def write(directory: Path, number: int = 1, ranks: range = range(RANKS), **common: Any) -> list[CutPart]:
    """The parts of some ranks."""
    common = common or dict(trained().cut_content().common)
    own = {"random": random_states(), "values": {}, "residuals": {}}
    parts = [CutPart(folder_of(directory, number), number, CutContent(common, own), rank, RANKS) for rank in ranks]
    for part in parts:
        part.write()
    return parts


def cut(directory: Path, number: int = 1) -> Path:
    """A whole one."""
    write(directory, number)[0].conclude()
    return folder_of(directory, number)


def test_what_ranks_have_written_together_is_all_of_it(tmp_path: Path) -> None:
    folder, saved = cut(tmp_path), trained()
    state = trained(seed=2)
    assert bps.elastic.load(tmp_path, state) == folder == bps.elastic.latest(tmp_path)
    for name, value in saved.model.state_dict().items():
        assert torch.equal(state.model.state_dict()[name], value)
    mine, theirs = state.optimizer.state_dict(), saved.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for number, entries in theirs["state"].items():
        assert all(torch.equal(mine["state"][number][key], value) for key, value in entries.items())
    assert (state.epoch, state.seen) == (1, {"a": (1, [2.5, None])})
    assert state.sampler.processed_indices == saved.sampler.processed_indices and len(state.sampler) == 43
    state.epoch = 9
    state.restore()
    assert state.epoch == 1, "what was loaded is the last commit"


def test_shares_are_about_equal_and_no_tensor_is_written_twice(tmp_path: Path) -> None:
    common = {"model": {f"{number}": torch.randn(1000 + number) for number in range(30)}}
    parts = write(tmp_path, **common)
    sizes = [path.stat().st_size for path in sorted((parts[0].folder / "state").glob("*.distcp"))]
    assert len(sizes) == RANKS and max(sizes) < 1.2 * min(sizes) and sum(sizes) < 1.5 * 30 * 4100


def test_others_can_read_it_by_torch(tmp_path: Path) -> None:
    folder = cut(tmp_path)
    dcp_to_torch_save(folder / "state", tmp_path / "plain.pt")
    plain, saved = torch.load(tmp_path / "plain.pt"), trained()
    for name, value in saved.model.state_dict().items():
        assert torch.equal(plain[f"model.{name}"], value)
    assert torch.equal(plain["optimizer.state.0.exp_avg"], saved.optimizer.state_dict()["state"][0]["exp_avg"])


def test_tensors_whose_places_have_one_name_are_told_apart(tmp_path: Path) -> None:
    tree = {"a": {"b.c": torch.ones(2), "b": {"c": torch.zeros(2)}}, "a.b": {"c": torch.full((2,), 2.0)}}
    write(tmp_path, **tree)[0].conclude()
    back = read_common(folder_of(tmp_path, 1) / "state")
    assert back["a"]["b.c"].tolist() == [1, 1] and back["a"]["b"]["c"].tolist() == [0, 0]
    assert back["a.b"]["c"].tolist() == [2, 2]


@pytest.mark.parametrize("ranks", [range(2), range(1, RANKS)], ids=["last", "first"])
def test_without_a_ranks_part_there_is_no_cut(tmp_path: Path, ranks: range) -> None:
    parts = write(tmp_path, ranks=ranks)
    (missing,) = set(range(RANKS)) - set(ranks)
    with pytest.raises(CorruptError, match=f"rank {missing} has not written its part"):
        parts[0].conclude()
    assert newest(tmp_path) is None and bps.elastic.load(tmp_path, trained()) is None


def test_ranks_with_other_tensors_make_no_cut(tmp_path: Path) -> None:
    first, *_ = write(tmp_path, ranks=range(2), w=torch.ones(3))
    write(tmp_path, ranks=range(2, 3), w=torch.ones(4))
    with pytest.raises(MismatchError, match="rank 2 has not the same tensors as rank 0"):
        first.conclude()
    assert newest(tmp_path) is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gone": (Path.unlink, "is missing"),
    "flipped": (flip, "fails its checksum|is not JSON"),
    "shorter": (shorten, "bytes, and was written with|is not JSON"),
    "empty": (lambda path: path.write_bytes(b""), "has 0 bytes, and was written with|is not JSON"),
}
FILES = ["state/.metadata", *(f"state/__{rank}_0.distcp" for rank in range(RANKS)), "own/00000.bin", "own/00002.bin"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", [*FILES, "manifest.json"])
def test_damage_is_named_and_changes_nothing(tmp_path: Path, file: str, damage: str) -> None:
    cut(tmp_path, 1)
    folder, (harm, said) = cut(tmp_path, 2), DAMAGES[damage]
    harm(folder / file)
    state = trained(seed=2)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    if file == "manifest.json" and damage == "gone":
        assert newest(tmp_path) == folder_of(tmp_path, 1), "it is no cut any more"
        return
    with pytest.raises(CorruptError, match=said) as caught:
        bps.elastic.load(tmp_path, state)
    assert str(folder / file) in str(caught.value)
    assert f"name {folder_of(tmp_path, 1)}, the one before" in str(caught.value)
    assert state.epoch == 2 and all(torch.equal(state.model.state_dict()[name], before[name]) for name in before)
    assert bps.elastic.load(folder_of(tmp_path, 1), state) == folder_of(tmp_path, 1), "as the error has said"
    assert state.epoch == 1


def test_every_file_is_in_the_manifest(tmp_path: Path) -> None:
    folder = cut(tmp_path)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {*read_manifest(folder).files, "manifest.json"}


def test_a_manifest_with_another_number_in_it_fails_its_checksum(tmp_path: Path) -> None:
    path = cut(tmp_path) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ranks": 2}))
    with pytest.raises(CorruptError, match=r"manifest\.json fails its checksum"):
        bps.elastic.load(tmp_path, trained())


@pytest.mark.parametrize("file", ["state/__0_0.distcp", "own/00000.bin"])
def test_a_full_disk_is_named_by_its_file(tmp_path: Path, file: str) -> None:
    path = folder_of(tmp_path, 1) / file
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    with pytest.raises(SystemCallError, match="No space left on device") as caught:
        write(tmp_path, ranks=range(1), w=torch.randn(300_000))
    assert str(path.parent) in str(caught.value)


def test_another_program_is_told_what_does_not_fit(tmp_path: Path) -> None:
    cut(tmp_path)
    other = bps.elastic.TorchState(torch.nn.Linear(3, 3), teacher=torch.nn.Linear(3, 3), epoch=0)
    with pytest.raises(MismatchError, match="the cut has nothing of 'teacher'"):
        bps.elastic.load(tmp_path, other)
    with pytest.raises(MismatchError, match=r"doesn't fit this program: .*size mismatch|Missing key"):
        bps.elastic.load(tmp_path, bps.elastic.TorchState(torch.nn.Linear(3, 3)))
    sampler = bps.elastic.ElasticSampler(range(51))
    with pytest.raises(MismatchError, match="of an ElasticSampler of 50 samples, and this one has 51"):
        bps.elastic.load(tmp_path, bps.elastic.TorchState(sampler=sampler))


def test_old_cuts_and_what_never_became_one_go(tmp_path: Path) -> None:
    for number in (1, 2, 4):
        cut(tmp_path, number)
    write(tmp_path, 3)
    cut(tmp_path, 5)
    write(tmp_path, 6)
    keep_newest(tmp_path, 5, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"cut-{number:08}" for number in (4, 5, 6)]
    keep_newest(tmp_path, 5, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"cut-{number:08}" for number in (5, 6)]


def test_handlers_of_other_kinds_say_that_they_have_no_cut(tmp_path: Path) -> None:
    class PlainHandler(bps.elastic.StateHandler[Any]):
        def save(self) -> None:
            pass

    before = bps.elastic.get_handler_registry()
    bps.elastic.set_handler_registry([(torch.nn.Linear, PlainHandler), *before])
    try:
        state = bps.elastic.TorchState(torch.nn.Linear(1, 1))
    finally:
        bps.elastic.set_handler_registry(before)
    with pytest.raises(InvalidArgumentError, match=r"PlainHandler has no cut\(\)"):
        bps.elastic.save(tmp_path, state)


def test_a_cut_stays_as_it_was_while_training_goes_on() -> None:
    state = trained()
    content = state.cut_content()
    held = {name: value.clone() for name, value in content.common["model"].items()}
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(1.0)
    state.epoch = 7
    state.commit()
    state.commit()
    assert all(torch.equal(content.common["model"][name], value) for name, value in held.items())
    assert content.common["epoch"] == 1
