"""Stages load back bit for bit; a damaged stage is detected and never loaded."""

import hashlib
import json
import math
import os
import shutil
import warnings

import pytest
import torch

from pathgrow.checkpoint import RunDir, stage_files
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.errors import RunFailed, UserError
from tests.support.catalogue import Trials

CONFIG = {"seed": 0}


@pytest.fixture
def folder(tmp_path):
    with RunDir.open(tmp_path / "run", CONFIG) as opened:
        yield opened


def tensors():
    tied = torch.arange(6.0).reshape(2, 3)
    return {
        "weight": tied,
        "tied": tied,
        "transposed": tied.T,
        "mask": torch.tensor([True, False]),
        "step": torch.tensor(7),
        "moments": torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
    }


def test_a_stage_loads_back_bit_for_bit(folder):
    metadata = {
        "score": 0.1 + 0.2,
        "tiny": 5e-324,
        "big": 2**70,
        "none": None,
        "text": "Grüße \ud83d",
        "list": [1, [True]],
    }
    folder.stages.save("round_001", metadata, tensors())
    stage = RunDir(folder.path).stages.load("round_001")
    assert stage.metadata == metadata
    assert type(stage.metadata["list"][1][0]) is bool
    assert stage.tensors.keys() == tensors().keys()
    for name, tensor in tensors().items():
        back = stage.tensors[name]
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert back.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))


def test_a_loaded_tensor_shares_no_memory(folder):
    folder.stages.save("seed", {}, {"weight": torch.zeros(3)})
    folder.stages.load("seed").tensors["weight"].add_(1)
    assert folder.stages.load("seed").tensors["weight"].tolist() == [0, 0, 0]


def test_an_unknown_stage_is_none(folder):
    assert folder.stages.load("round_009") is None


def test_saving_again_replaces_the_stage_and_leaves_one_tensor_file(folder):
    for value in range(4):
        folder.stages.save("latest", {"value": value}, {"x": torch.tensor([value])})
        stage = folder.stages.load("latest")
        assert (stage.metadata["value"], stage.tensors["x"].item()) == (value, value)
        assert len(list((folder.path / "stages").glob("*.safetensors"))) == 1
    folder.stages.save("latest", {"value": 9})
    assert folder.stages.load("latest").tensors == {}
    assert not list((folder.path / "stages").glob("*.safetensors"))


def test_forgetting_tensors_keeps_the_metadata(folder):
    folder.stages.save("seed", {"score": 0.5}, tensors())
    folder.stages.delete_tensors("seed")
    folder.stages.delete_tensors("seed")
    folder.stages.delete_tensors("never_there")
    assert folder.stages.load("seed").metadata == folder.stages.metadata("seed") == {"score": 0.5}
    assert folder.stages.load("seed").tensors == {}
    assert not list((folder.path / "stages").glob("*.safetensors"))


def test_stages_are_listed_in_the_order_they_finished(folder):
    for stage in ("c", "a", "b"):
        folder.stages.save(stage, {}, tensors())
    folder.stages.delete_tensors("c")
    for number, stage in enumerate(("b", "a", "c")):  # as in a copy of the directory
        os.utime(folder.path / "stages" / f"{stage}.json", (number, number))
    assert folder.stages.names() == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({"a": [{"loss": math.nan}]}, r"metadata\.a\[0\]\.loss is nan"),
        ({"loss": -math.inf}, r"metadata\.loss is -inf"),
        ({"interval": (1, 2)}, r"metadata\.interval is a tuple"),
        ({"by_round": {1: 2}}, r"metadata\.by_round has the key 1"),
        ({"x": torch.tensor(1.0)}, r"metadata\.x is a Tensor"),
    ],
)
def test_metadata_that_would_not_come_back_equal_are_refused_with_their_place(folder, metadata, fault):
    with pytest.raises(RunFailed, match=fault):
        folder.stages.save("seed", metadata)
    assert folder.stages.load("seed") is None


@pytest.mark.parametrize("name", ["", "../outside", "a/b", ".hidden", "a.b", "round 1"])
def test_invalid_stage_names_are_refused(folder, name):
    with pytest.raises(UserError, match="stage name"):
        folder.stages.save(name, {})


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


@pytest.mark.item(10)
@pytest.mark.parametrize("file", ["seed.json", "seed.safetensors"])
def test_a_truncated_stage_is_moved_aside_at_every_length(folder, file, trials: Trials):
    folder.stages.save("seed", {"score": 0.5, "rounds": list(range(40))}, {"x": torch.arange(30)})
    path = folder.path / "stages" / file
    whole = {name: (path.parent / name).read_bytes() for name in ("seed.json", "seed.safetensors")}
    length = len(whole[file])
    num = trials.count(quick=40, full=100)
    for size in sorted({1, length - 2, *(length * part // num for part in range(num))}):
        for name, data in whole.items():
            (path.parent / name).write_bytes(data)
        path.write_bytes(whole[file][:size])
        with trials.one(f"{size} of {length} bytes"):
            with pytest.warns(DamagedStageWarning, match="'seed'"):
                assert folder.stages.load("seed") is None
            assert (path.parent / (file + ".bad")).read_bytes() == whole[file][:size]
            assert folder.stages.load("seed") is None


@pytest.mark.item(10)
def test_a_flipped_bit_is_detected_or_harmless(folder, trials: Trials):
    metadata = {"score": 0.512345, "rounds": [1, 2, 3], "name": "mlp"}
    folder.stages.save("seed", metadata, {"x": torch.arange(100)})
    stages = folder.path / "stages"
    whole = {name: (stages / name).read_bytes() for name in ("seed.json", "seed.safetensors")}
    detected = 0
    num = trials.count(quick=200, full=1000)
    for _ in range(num):
        for name, data in whole.items():
            (stages / name).write_bytes(data)
        name = trials.draw.choice(("seed.json", "seed.safetensors"))
        place, bit = trials.draw.randrange(len(whole[name])), trials.draw.randrange(8)
        with trials.one(f"bit {bit} of byte {place} of {name}"):
            flip(stages / name, place, bit)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DamagedStageWarning)
                stage = folder.stages.load("seed")
            detected += stage is None
            # A flip in white space between values is harmless.
            assert stage is None or (stage.metadata == metadata and stage.tensors["x"].equal(torch.arange(100)))
    assert detected > 0.8 * num


def test_a_missing_tensor_file_is_damage(folder):
    folder.stages.save("seed", {}, {"x": torch.zeros(1)})
    (folder.path / "stages" / "seed.safetensors").unlink()
    with pytest.warns(DamagedStageWarning, match="is missing"):
        assert folder.stages.load("seed") is None


def test_a_record_under_another_stage_name_is_damage(folder):
    folder.stages.save("seed", {"score": 0.5}, tensors())
    shutil.copy(folder.path / "stages" / "seed.json", folder.path / "stages" / "final.json")
    with pytest.warns(DamagedStageWarning, match=r"final\.json holds stage 'seed'"):
        assert folder.stages.load("final") is None
    assert folder.stages.load("seed").metadata == {"score": 0.5}


def test_a_record_with_a_number_beyond_the_range_of_a_float_is_damage(folder):
    folder.stages.save("seed", {"score": 0.5})
    record = folder.path / "stages" / "seed.json"
    record.write_text(record.read_text().replace("0.5", "1e999"))
    with pytest.warns(DamagedStageWarning, match="seed.json is not JSON"):
        assert folder.stages.load("seed") is None


def test_a_reader_leaves_a_damaged_stage_in_place(folder):
    folder.stages.save("seed", {})
    path = folder.path / "stages" / "seed.json"
    path.write_bytes(b"{")
    with pytest.warns(DamagedStageWarning, match="left unchanged"):
        assert RunDir(folder.path).stages.load("seed") is None
    assert path.read_bytes() == b"{"


def test_opening_never_deletes_tensors_of_a_damaged_record(folder):
    folder.stages.save("seed", {}, {"x": torch.zeros(1)})
    (folder.path / "stages" / "seed.json").write_bytes(b"{")
    folder.close()
    with RunDir.open(folder.path, CONFIG):
        assert (folder.path / "stages" / "seed.safetensors").exists()


@pytest.mark.item(12)
def test_stages_of_another_format_are_refused_not_discarded(folder):
    folder.stages.save("seed", {})
    path = folder.path / "stages" / "seed.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    record["format"] = 1
    path.write_text(json.dumps({**record, "sha256": stage_files._digest(record)}))
    with pytest.raises(UserError, match="another version"):
        folder.stages.load("seed")


DELETED = object()
ODD = [DELETED, None, -1, 1.5, "x", [], {}, True, "../../thesis.txt", [[]] * 3]


@pytest.mark.item(4)
@pytest.mark.parametrize("key", ["stage", "metadata", "tensors", "tensors.file", "tensors.sha256", "seconds", "more"])
def test_a_record_with_an_odd_field_is_damaged_although_its_hash_is_right(folder, key):
    """Nothing but the files of this stage is read, moved or deleted."""
    mine = folder.path.parent / "thesis.txt"
    mine.write_text("the only copy")
    stages = folder.path / "stages"
    folder.stages.save("seed", {"score": 0.5}, {"x": torch.arange(3)})
    whole = {path.name: path.read_bytes() for path in stages.iterdir()}
    for odd in ODD:
        for name, data in whole.items():
            (stages / name).write_bytes(data)
        record = json.loads(whole["seed.json"])
        del record["sha256"]
        if (key, odd) in [("metadata", {}), ("tensors", None), ("seconds", 1.5), ("more", DELETED)]:
            continue  # valid
        outer, _, inner = key.rpartition(".")
        table = record[outer] if outer else record
        if odd is DELETED:
            del table[inner]
        else:
            table[inner] = odd
            if odd == "../../thesis.txt" and inner == "file":
                table["sha256"] = hashlib.sha256(mine.read_bytes()).hexdigest()
        (stages / "seed.json").write_text(json.dumps({**record, "sha256": stage_files._digest(record)}))
        reader = RunDir(folder.path).stages
        assert reader.metadata("seed") is None or key == "tensors.sha256"
        folder.stages.sweep()
        with pytest.warns(DamagedStageWarning, match="'seed' in .* is damaged"):
            folder.stages.delete_tensors("seed") if odd == "x" and inner != "sha256" else folder.stages.load("seed")
        folder.stages.save("seed", {"score": 0.5}, {"x": torch.arange(3)})
        assert folder.stages.load("seed").tensors["x"].tolist() == [0, 1, 2]
    assert mine.read_text() == "the only copy"


def test_only_tensors_of_stages_are_swept(folder):
    folder.stages.save("seed", {}, {"x": torch.zeros(1)})
    for name in ("mine.backup.safetensors", "lost.safetensors"):
        (folder.path / "stages" / name).write_bytes(b"")
    folder.stages.sweep()
    left = {path.name for path in (folder.path / "stages").iterdir()}
    assert left == {"seed.json", "seed.safetensors", "mine.backup.safetensors"}


@pytest.mark.parametrize("row", [b'{"stage": ' + b"[" * 5000 + b"\n", b'{"stage": 3}\n', b"[]\n", b"\xff\n"])
def test_odd_rows_of_metrics_are_skipped(folder, row):
    folder.log("seed", loss=0.5)
    with open(folder.path / "metrics.jsonl", "ab") as file:
        file.write(row)
    assert folder.metrics == [{"stage": "seed", "loss": 0.5}]


def test_metrics_of_a_damaged_stage_are_dropped(folder):
    folder.log("seed", loss=0.1)
    folder.stages.save("seed", {})
    folder.log("round_001", loss=0.2)
    (folder.path / "stages" / "seed.json").write_bytes(b"")
    with pytest.warns(DamagedStageWarning):
        folder.stages.load("seed")
    assert [row["stage"] for row in folder.metrics] == ["round_001"]


@pytest.mark.item(9)
def test_a_full_disk_ends_the_run_and_keeps_the_last_state(folder, monkeypatch):
    folder.stages.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    real_fsync = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*resume"):
        folder.stages.save("seed", {"score": 2}, {"x": torch.ones(2)})
    monkeypatch.setattr(os, "fsync", real_fsync)
    stage = folder.stages.load("seed")
    assert stage.metadata == {"score": 1}
    assert stage.tensors["x"].tolist() == [0, 0]
    assert not list(folder.path.rglob(".*.tmp"))
