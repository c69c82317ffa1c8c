"""Run folders: stages remembered on disk, so that re-running is resuming."""

from pathgrow.runs.folder import RunFolder
from pathgrow.runs.shared import SharedStore
from pathgrow.runs.store import Facts, MemoryStore, Stage, Store

__all__ = ["Facts", "MemoryStore", "RunFolder", "SharedStore", "Stage", "Store"]
