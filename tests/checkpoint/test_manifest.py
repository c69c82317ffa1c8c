"""The manifest: every flipped bit of a finished run is noticed, and a damaged network is not loaded."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import pathgrow
from pathgrow.checkpoint import RunDir
from pathgrow.checkpoint.manifest import FILES, MANIFEST, damaged_files, read_manifest, write_manifest
from pathgrow.errors import UserError
from pathgrow.masks import Masks
from tests.support.catalogue import Trials

CONFIG = {"seed": 0, "data": "digits"}


def network(width: int = 3, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a file of every kind; copy it before changing it."""
    path = tmp_path_factory.mktemp("manifest") / "run"
    masks = Masks.full(network())
    with RunDir.open(path, CONFIG) as run:
        run.log("seed", loss=0.5)
        run.stages.save("seed", {"score": 0.5}, dict(masks))
        run.save_masks(0, masks)
        run.save_network(network(), masks)
        run.write_curve([{"score": 0.5}])
        for name in ("curve.png", "report.html"):
            (path / name).write_text("drawn")
        run.write_report({"score": 0.5})
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_every_file_but_the_lock_is_listed(run: Path) -> None:
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert set(read_manifest(run) or {}) == files - {".lock", MANIFEST} > set(FILES)
    assert damaged_files(run) == {}


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="coreutils")
def test_sha256sum_verifies_a_run(run: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "--quiet", MANIFEST]
    assert subprocess.run(command, cwd=run, check=False).returncode == 0
    (run / "curve.csv").write_text("score\n0.6\n")
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "curve.csv: FAILED\n"


@pytest.mark.item(10)
def test_any_flipped_bit_and_any_truncation_is_noticed(run: Path, trials: Trials) -> None:
    """Also in the manifest itself; the reason names the file."""
    draw, num = trials.draw, trials.count(quick=15, full=100)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    for path, part in itertools.product(files, range(num)):
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        name = str(path.relative_to(run))
        for damaged in (bytes(flipped), data[: len(data) * part // num]):
            with trials.one(f"{name}, {len(damaged)} of {len(data)} bytes"):
                path.write_bytes(damaged)
                found = RunDir(run).damage()
                assert found
                assert name == MANIFEST or list(found) == [name]
        path.write_bytes(data)
    assert RunDir(run).damage() == {}


def test_missing_files_are_named(run: Path) -> None:
    for name in ("network.safetensors", "masks/round_000.safetensors"):
        (run / name).unlink()
    assert damaged_files(run) == {
        "masks/round_000.safetensors": "is missing",
        "network.safetensors": "is missing",
    }


def test_a_manifest_does_not_declare_a_damaged_file_valid(run: Path) -> None:
    (run / "curve.csv").write_text("")
    (run / "stages" / "seed.json").write_text("trained again")
    write_manifest(run)
    assert list(damaged_files(run)) == ["curve.csv"]


@pytest.mark.parametrize(
    "content",
    ["", "abc  report.json\n", f"{'0' * 64}  ../report.json\n", f"{'0' * 64}  /etc/passwd\n", f"{'0' * 64}  a.json"],
)
def test_a_malformed_manifest_is_refused(run: Path, content: str) -> None:
    (run / MANIFEST).write_text(content)
    with pytest.raises(UserError, match="is damaged: "):
        read_manifest(run)
    assert RunDir(run).damage()


def test_a_network_loads_with_its_masks(run: Path) -> None:
    model = network(seed=1)
    assert pathgrow.load_network(run, model) == Masks.full(network())
    for name, tensor in network().state_dict().items():
        assert tensor.equal(model.state_dict()[name])


class Counting(nn.Linear):
    """A module with state that is not a tensor."""

    calls = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_state_that_is_no_tensor_is_left_as_it_is(tmp_path: Path) -> None:
    saved, loaded = Counting(4, 2), Counting(4, 2)
    saved.calls, loaded.calls = 3, 5
    with RunDir.open(tmp_path / "run", {"seed": 0}) as run_dir:
        run_dir.save_network(saved, Masks.full(saved))
        run_dir.write_report({"score": 0.5})
    pathgrow.load_network(tmp_path / "run", loaded)
    assert loaded.weight.equal(saved.weight)
    assert loaded.calls == 5


@pytest.mark.parametrize("name", ["network.safetensors", "network_masks.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "missing"])
def test_a_damaged_network_is_not_loaded(run: Path, name: str, damage: str) -> None:
    path = run / name
    if damage == "flip":
        data = bytearray(path.read_bytes())
        data[-1] ^= 0x40
        path.write_bytes(bytes(data))
    else:
        path.unlink()
    model, before = network(seed=1), network(seed=1)
    with pytest.raises(UserError, match=f"{name} does not match" if damage == "flip" else f"cannot read .*{name}"):
        pathgrow.load_network(run, model)
    assert all(tensor.equal(model.state_dict()[name]) for name, tensor in before.state_dict().items())


def test_another_model_and_an_unfinished_run_are_refused(run: Path) -> None:
    change = r"0\.weight is \d+x\d+ there and 5x\d+ here \(and \d more\)"
    with pytest.raises(UserError, match=rf"network\.safetensors was saved from another architecture: {change}$"):
        pathgrow.load_network(run, network(width=5))
    (run / MANIFEST).unlink()
    with pytest.raises(UserError, match=r"has no manifest\.sha256"):
        pathgrow.load_network(run, network())
