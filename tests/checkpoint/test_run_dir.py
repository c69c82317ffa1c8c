"""Run folders: what is written comes back, what is damaged does not, and what stands in the way is said."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
import types
import warnings

import pytest
import torch

from pathgrow.checkpoint import RunDir, environment, lock, strict_json
from pathgrow.checkpoint.run_dir import EnvironmentChangedWarning
from pathgrow.checkpoint.stage_files import DamagedStageWarning
from pathgrow.errors import RunFailed, UserError
from pathgrow.masks import Masks

CONFIG = {"seed": 0, "delta": 0.01, "model": {"name": "mlp", "widths": [64, 10]}}


@pytest.fixture
def folder(tmp_path):
    with RunDir.open(tmp_path / "run", CONFIG) as opened:
        yield opened


@pytest.fixture
def of_a_command(tmp_path):
    with RunDir.open(tmp_path / "run", {**CONFIG, "data": "digits"}) as opened:
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


def test_a_stage_comes_back_bit_for_bit(folder):
    metadata = {
        "score": 0.1 + 0.2,
        "tiny": 5e-324,
        "big": 2**70,
        "none": None,
        "text": "Grüße \ud83d",
        "list": [1, [True]],
    }
    folder.save("round_001", metadata, tensors())
    stage = RunDir(folder.path).load("round_001")
    assert stage.metadata == metadata
    assert type(stage.metadata["list"][1][0]) is bool
    assert stage.tensors.keys() == tensors().keys()
    for name, tensor in tensors().items():
        back = stage.tensors[name]
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert back.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))


def test_a_loaded_tensor_is_its_own(folder):
    folder.save("seed", {}, {"weight": torch.zeros(3)})
    folder.load("seed").tensors["weight"].add_(1)
    assert folder.load("seed").tensors["weight"].tolist() == [0, 0, 0]


def test_a_stage_that_was_never_saved_is_none(folder):
    assert folder.load("round_009") is None


def test_saving_again_replaces_the_stage_and_leaves_one_tensor_file(folder):
    for value in range(4):
        folder.save("latest", {"value": value}, {"x": torch.tensor([value])})
        stage = folder.load("latest")
        assert (stage.metadata["value"], stage.tensors["x"].item()) == (value, value)
        assert len(list((folder.path / "stages").glob("*.safetensors"))) == 1
    folder.save("latest", {"value": 9})
    assert folder.load("latest").tensors == {}
    assert not list((folder.path / "stages").glob("*.safetensors"))


def test_forgetting_tensors_keeps_the_facts(folder):
    folder.save("seed", {"score": 0.5}, tensors())
    folder.delete_tensors("seed")
    folder.delete_tensors("seed")
    folder.delete_tensors("never_there")
    assert folder.load("seed").metadata == folder.metadata("seed") == {"score": 0.5}
    assert folder.load("seed").tensors == {}
    assert not list((folder.path / "stages").glob("*.safetensors"))


def test_stages_are_told_in_the_order_in_which_they_ended(folder):
    for stage in ("c", "a", "b"):
        folder.save(stage, {}, tensors())
        time.sleep(0.02)  # file systems may count in ticks
    folder.delete_tensors("c")
    assert list(folder.stages) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"a": [{"loss": math.nan}]}, r"facts\.a\[0\]\.loss is nan"),
        ({"loss": -math.inf}, r"facts\.loss is -inf"),
        ({"interval": (1, 2)}, r"facts\.interval is a tuple"),
        ({"by_round": {1: 2}}, r"facts\.by_round has the key 1"),
        ({"x": torch.tensor(1.0)}, r"facts\.x is a Tensor"),
    ],
)
def test_facts_that_would_not_come_back_equal_are_refused_with_their_place(folder, metadata, fault):
    with pytest.raises(RunFailed, match=fault):
        folder.save("seed", metadata)
    assert folder.load("seed") is None


@pytest.mark.parametrize("name", ["", "../outside", "a/b", ".hidden", "a.b", "round 1"])
def test_a_stage_name_is_a_plain_file_name(folder, name):
    with pytest.raises(UserError, match="stage name"):
        folder.save(name, {})


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("file", ["seed.json", "seed.safetensors"])
def test_a_truncated_stage_is_set_aside_at_every_length(folder, file):
    folder.save("seed", {"score": 0.5}, {"x": torch.arange(3)})
    path = folder.path / "stages" / file
    whole = {name: (path.parent / name).read_bytes() for name in ("seed.json", "seed.safetensors")}
    length = len(whole[file])
    for size in sorted({0, 1, length // 2, length - 2, *range(0, length - 1, max(1, length // 40))}):
        for name, data in whole.items():
            (path.parent / name).write_bytes(data)
        path.write_bytes(whole[file][:size])
        with pytest.warns(DamagedStageWarning, match="'seed'"):
            assert folder.load("seed") is None
        assert (path.parent / (file + ".bad")).read_bytes() == whole[file][:size]
        assert folder.load("seed") is None


def test_a_flipped_bit_never_changes_what_is_read(folder):
    metadata = {"score": 0.512345, "rounds": [1, 2, 3], "name": "mlp"}
    generator = torch.Generator().manual_seed(0)
    folder.save("seed", metadata, {"x": torch.arange(100)})
    stages = folder.path / "stages"
    whole = {name: (stages / name).read_bytes() for name in ("seed.json", "seed.safetensors")}
    detected = 0
    for _ in range(300):
        for name, data in whole.items():
            (stages / name).write_bytes(data)
        name = ("seed.json", "seed.safetensors")[int(torch.randint(2, (), generator=generator))]
        flip(stages / name, int(torch.randint(len(whole[name]), (), generator=generator)), detected % 8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedStageWarning)
            stage = folder.load("seed")
        detected += stage is None
        # A flip in white space between values changes nothing, and nothing may come of it.
        assert stage is None or (stage.metadata == metadata and stage.tensors["x"].equal(torch.arange(100)))
    assert detected > 250


def test_a_missing_tensor_file_is_damage(folder):
    folder.save("seed", {}, {"x": torch.zeros(1)})
    (folder.path / "stages" / "seed.safetensors").unlink()
    with pytest.warns(DamagedStageWarning, match="is missing"):
        assert folder.load("seed") is None


def test_a_record_under_the_name_of_another_stage_is_damage(folder):
    folder.save("seed", {"score": 0.5}, tensors())
    shutil.copy(folder.path / "stages" / "seed.json", folder.path / "stages" / "final.json")
    with pytest.warns(DamagedStageWarning, match=r"final\.json holds stage 'seed'"):
        assert folder.load("final") is None
    assert folder.load("seed").metadata == {"score": 0.5}


def test_a_reader_leaves_a_damaged_stage_where_it_is(folder):
    folder.save("seed", {})
    path = folder.path / "stages" / "seed.json"
    path.write_bytes(b"{")
    with pytest.warns(DamagedStageWarning, match="left as it is"):
        assert RunDir(folder.path).load("seed") is None
    assert path.read_bytes() == b"{"


def test_opening_never_deletes_tensors_of_a_damaged_record(folder):
    folder.save("seed", {}, {"x": torch.zeros(1)})
    (folder.path / "stages" / "seed.json").write_bytes(b"{")
    folder.close()
    with RunDir.open(folder.path, CONFIG):
        assert (folder.path / "stages" / "seed.safetensors").exists()


def test_stages_of_another_format_are_refused_not_thrown_away(folder):
    from pathgrow.checkpoint import stage_files

    folder.save("seed", {})
    path = folder.path / "stages" / "seed.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    record["format"] = 2
    path.write_text(json.dumps({**record, "sha256": stage_files._digest(record)}))
    with pytest.raises(UserError, match="another version"):
        folder.load("seed")


# Opening


def test_config_and_environment_are_there_before_the_first_stage(folder):
    assert json.loads((folder.path / "config.json").read_text()) == CONFIG
    environment = json.loads((folder.path / "env.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["torch_threads"] == torch.get_num_threads()
    assert folder.config == CONFIG
    assert not folder.finished


def test_the_same_config_opens_again_whatever_the_order_of_keys_and_tuples(folder):
    folder.save("seed", {"score": 1})
    folder.close()
    same = {"model": {"widths": (64, 10), "name": "mlp"}, "delta": 0.01, "seed": 0}
    with RunDir.open(folder.path, same) as again:
        assert again.load("seed").metadata == {"score": 1}


def test_another_config_is_refused_with_the_keys_that_differ(folder):
    folder.close()
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    other = {"seed": True, "delta": 0.02, "model": {"name": "mlp", "widths": [64, 9], "bias": False}}
    with pytest.raises(UserError) as error:
        RunDir.open(folder.path, other)
    sentence = str(error.value)
    assert "seed was 0, now true; delta was 0.01, now 0.02; model.widths was [64, 10], now [64, 9]; and 1 " in sentence
    assert "--out" in sentence
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    RunDir.open(folder.path, CONFIG).close()


@pytest.mark.parametrize(("before", "now"), [(1, True), (0, False), (1, 1.0), (2.0, 2)])
def test_values_that_python_takes_for_equal_are_different_configs(tmp_path, before, now):
    RunDir.open(tmp_path, {"x": before}).close()
    with pytest.raises(UserError, match=f"x was {json.dumps(before)}, now {json.dumps(now)}"):
        RunDir.open(tmp_path, {"x": now})


def test_a_run_refused_at_its_start_makes_way_for_another(folder):
    folder.save("plan", {"epochs": 3})
    folder.withdraw()
    folder.close()
    with RunDir.open(folder.path, {"seed": 1}) as again:
        assert again.load("plan") is None
        assert again.config == {"seed": 1}


def test_a_run_that_has_trained_is_not_withdrawn(folder):
    folder.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    folder.withdraw()
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    folder.close()
    with RunDir.open(folder.path, CONFIG) as again:
        again.withdraw()
        assert again.load("seed").metadata == {"score": 1}


def test_what_an_earlier_process_began_is_not_withdrawn(folder):
    folder.save("plan", {"epochs": 3})
    folder.close()
    with RunDir.open(folder.path, CONFIG) as again:
        again.withdraw()
        assert again.load("plan").metadata == {"epochs": 3}


def test_things_that_are_no_run_folder_are_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        RunDir.open(file, CONFIG)
    with pytest.raises(UserError, match="cannot write in"):
        RunDir.open(file / "below", CONFIG)
    with pytest.raises(UserError, match=r"holds 'file' but no config\.json"):
        RunDir.open(tmp_path, CONFIG)
    assert file.read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_folder_is_refused(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, whom no permission stops
    with pytest.raises(UserError, match="Permission denied"):
        RunDir.open(tmp_path / "run", CONFIG)


def test_a_folder_killed_before_its_config_was_written_opens(tmp_path):
    (tmp_path / ".lock").write_text("4711\n")
    (tmp_path / ".config.json.tmp").write_text('{"se')
    with RunDir.open(tmp_path, CONFIG) as folder:
        assert folder.config == CONFIG
    assert not (tmp_path / ".config.json.tmp").exists()


def test_a_config_that_is_not_json_is_a_sentence(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        RunDir.open(tmp_path, CONFIG)
    with pytest.raises(UserError, match=r"config\.scope is a set"):
        RunDir.open(tmp_path / "run", {"scope": {1}})


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_what_is_advised_about_a_damaged_config_works(folder, content):
    folder.save("seed", {"score": 0.5})
    folder.close()
    (folder.path / "config.json").write_text(content)
    with pytest.raises(UserError, match="delete the whole folder to begin anew"):
        RunDir.open(folder.path, CONFIG)
    shutil.rmtree(folder.path)
    with RunDir.open(folder.path, CONFIG) as again:
        assert again.stages == []


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_what_is_advised_about_a_damaged_report_works(folder, content):
    folder.save("seed", {"score": 0.5})
    (folder.path / "report.json").write_text(content)
    with pytest.raises(UserError, match="delete it and give the command of this run again"):
        folder.report()
    folder.close()
    (folder.path / "report.json").unlink()
    with RunDir.open(folder.path, CONFIG) as again:
        assert not again.finished
        assert again.load("seed").metadata == {"score": 0.5}


def test_files_that_were_taken_from_a_finished_run_are_named(of_a_command):
    folder = of_a_command
    assert folder.missing == []  # nothing was promised yet
    folder.write_report({})
    (folder.path / "network.safetensors").write_bytes(b"")
    assert folder.missing == ["metrics.jsonl", "curve.csv", "network_masks.safetensors"]


def test_a_call_leaves_its_curve_and_its_caller_has_the_rest(folder):
    folder.write_report({"curve": {"rough": [{"round": 0}]}})
    assert folder.missing == ["curve.csv"]
    folder.write_curve([{"kind": "rough", "score": 0.5}])
    assert folder.missing == []


def test_masks_and_metrics_that_were_taken_are_named(of_a_command):
    folder = of_a_command
    masks = Masks({"0.weight": torch.tensor([[True, False]])})
    for round in range(3):
        folder.save_masks(round, masks)
    for name in ("curve.csv", "network.safetensors", "network_masks.safetensors"):
        (folder.path / name).write_bytes(b"")
    folder.log("seed", epoch=1)
    folder.write_report({"curve": {"rough": [{"round": round} for round in range(3)]}})
    assert folder.missing == []
    (folder.path / "masks" / "round_001.safetensors").unlink()
    assert folder.missing == ["masks/round_001.safetensors"]
    shutil.rmtree(folder.path / "masks")
    (folder.path / "metrics.jsonl").unlink()
    assert folder.missing == ["metrics.jsonl", *(f"masks/round_{round:03d}.safetensors" for round in range(3))]


def test_another_environment_is_said_and_the_first_one_kept(folder):
    folder.close()
    path = folder.path / "env.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "torch": "1.0"}))
    with pytest.warns(EnvironmentChangedWarning, match=r"torch 1\.0 -> "):
        RunDir.open(folder.path, CONFIG).close()
    assert json.loads(path.read_text())["torch"] == "1.0"


# One process at a time


def test_everything_that_bits_depend_on_is_compared():
    now = environment.describe()
    differing = {key for key in now if environment.changes({**now, key: "another"}, now)}
    assert differing == {"python", "torch", "numpy", "machine", "torch_threads", "device", "device_name"}


def test_a_reader_who_asks_at_this_moment_does_not_keep_a_run_from_opening(folder, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    folder.close()
    reader = os.open(folder.path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
    with RunDir.open(folder.path, CONFIG):
        assert RunDir(folder.path).worker is not None
    os.close(reader)


def test_a_second_opening_is_refused_and_names_the_process(folder):
    with pytest.raises(UserError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
        RunDir.open(folder.path, CONFIG)
    assert RunDir(folder.path).worker == f"another process (pid {os.getpid()})"
    folder.close()
    assert RunDir(folder.path).worker is None
    RunDir.open(folder.path, CONFIG).close()


def test_a_killed_process_leaves_no_stale_lock(tmp_path):
    code = f"""
import fcntl, os, time
file = os.open({str(tmp_path / ".lock")!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holder.stdout.readline()
    with pytest.raises(UserError, match="in use"):
        RunDir.open(tmp_path, CONFIG)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    RunDir.open(tmp_path, CONFIG).close()


def test_a_forked_worker_does_not_keep_the_lock(folder):
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        folder.close()  # as if the parent had been killed: its own descriptor is gone, the child lives
        RunDir.open(folder.path, CONFIG).close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# Metrics


def test_rows_of_unfinished_stages_and_torn_lines_go_on_opening(folder):
    folder.log("seed", epoch=1, loss=0.5, time={"seconds": 1.0})
    folder.save("seed", {})
    folder.log("round_001", epoch=1, loss=math.nan)
    folder.close()
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "seed", "epo')
    assert folder.metrics[1] == {"stage": "round_001", "epoch": 1, "loss": None}
    with RunDir.open(folder.path, CONFIG) as again:
        assert again.metrics == [{"stage": "seed", "epoch": 1, "loss": 0.5, "time": {"seconds": 1.0}}]


def test_a_finished_file_of_metrics_is_not_rewritten(folder):
    folder.log("seed", loss=0.1)
    folder.save("seed", {})
    folder.close()
    before = (folder.path / "metrics.jsonl").stat().st_ino
    RunDir.open(folder.path, CONFIG).close()
    assert (folder.path / "metrics.jsonl").stat().st_ino == before


def test_rows_of_a_damaged_stage_go_with_it(folder):
    folder.log("seed", loss=0.1)
    folder.save("seed", {})
    folder.log("round_001", loss=0.2)
    (folder.path / "stages" / "seed.json").write_bytes(b"")
    with pytest.warns(DamagedStageWarning):
        folder.load("seed")
    assert [row["stage"] for row in folder.metrics] == ["round_001"]


# Report, curve, masks, network


def test_a_report_is_strict_json_and_means_finished(folder):
    folder.write_report({"score": math.nan, "interval": (0.1, 0.2)})
    assert folder.finished
    assert folder.report() == {"score": None, "interval": [0.1, 0.2]}
    assert strict_json.loads((folder.path / "report.json").read_bytes())
    folder.close()
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}
    with RunDir.open(folder.path, CONFIG) as again:
        assert again.finished
    assert before == {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}


def test_a_damaged_report_is_a_sentence(folder):
    (folder.path / "report.json").write_text('{"score": NaN}')
    with pytest.raises(UserError, match=r"report\.json is not JSON"):
        folder.report()


def test_a_curve_is_a_table_with_every_column(folder):
    folder.write_curve([{"round": 0, "density": 0.1 + 0.2}, {"round": 1, "density": 0.5, "loss": None}])
    assert (folder.path / "curve.csv").read_text() == "round,density,loss\n0,0.30000000000000004,\n1,0.5,\n"


def test_a_full_disk_ends_the_run_with_a_sentence_and_keeps_the_last_state(folder, monkeypatch):
    folder.save("seed", {"score": 1}, {"x": torch.zeros(2)})
    real_fsync = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*resume"):
        folder.save("seed", {"score": 2}, {"x": torch.ones(2)})
    monkeypatch.setattr(os, "fsync", real_fsync)
    stage = folder.load("seed")
    assert stage.metadata == {"score": 1}
    assert stage.tensors["x"].tolist() == [0, 0]
    assert not list(folder.path.rglob(".*.tmp"))


def test_the_time_of_a_run_adds_up_over_its_processes(tmp_path, monkeypatch):
    """Of a process that was killed, what it stored last tells how long it worked."""
    now = 1000.0
    monkeypatch.setattr("pathgrow.checkpoint.run_dir.time", types.SimpleNamespace(monotonic=lambda: now))
    first = RunDir.open(tmp_path, CONFIG)
    now += 10
    first.save("seed", {"score": 0.5}, tensors())
    now += 5
    first.save("partial-round_001-0", {"step": 7})
    now += 3  # lost by a kill
    assert first.seconds == 18
    first.close()
    assert RunDir(tmp_path).seconds == 15
    now += 5000
    with RunDir.open(tmp_path, CONFIG) as second:
        now += 2
        second.delete_tensors("seed")
        assert second.seconds == 17
        now += 4
    now += 50
    assert second.seconds == RunDir(tmp_path).seconds == 17
    assert second.load("seed").metadata == {"score": 0.5}
    (tmp_path / "stages" / "seed.json").write_text("{}")
    assert RunDir(tmp_path).seconds == 15, "a damaged stage says nothing"


def test_stages_without_a_time_are_those_of_an_older_version(tmp_path):
    body = {"format": 1, "stage": "seed", "facts": {"score": 0.5}, "tensors": None}
    record = {**body, "sha256": hashlib.sha256(strict_json.dumps(body).encode()).hexdigest()}
    with RunDir.open(tmp_path, CONFIG):
        pass
    (tmp_path / "stages").mkdir(exist_ok=True)
    (tmp_path / "stages" / "seed.json").write_text(strict_json.dumps(record))
    folder = RunDir(tmp_path)
    assert folder.seconds == 0
    assert folder.load("seed").metadata == {"score": 0.5}
