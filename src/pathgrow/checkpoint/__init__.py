"""Run folders: stages remembered on disk, so that re-running is resuming."""

from pathgrow.checkpoint.run_dir import RunFolder
from pathgrow.checkpoint.shared_store import SharedStore
from pathgrow.checkpoint.store import Facts, MemoryStore, Stage, Store

__all__ = ["Facts", "MemoryStore", "RunFolder", "SharedStore", "Stage", "Store"]
