"""Run folders: stages remembered on disk, so that re-running is resuming."""

from pathgrow.checkpoint.run_dir import RunDir
from pathgrow.checkpoint.shared_store import RankZeroStore
from pathgrow.checkpoint.store import MemoryStore, Metadata, Stage, Store

__all__ = ["MemoryStore", "Metadata", "RankZeroStore", "RunDir", "Stage", "Store"]
