"""Run directories and the stages stored in them; a stored stage is not run again, so rerunning resumes."""

from pathgrow.checkpoint.run_dir import RunDir
from pathgrow.checkpoint.stage_files import StageFiles
from pathgrow.checkpoint.store import MemoryStore, Metadata, RankZeroStore, Stage, Store

__all__ = ["MemoryStore", "Metadata", "RankZeroStore", "RunDir", "Stage", "StageFiles", "Store"]
