"""Where data lie on disk, and what to say when they do not."""

from __future__ import annotations

import os
from pathlib import Path

from pathgrow.data.official import OFFICIAL
from pathgrow.errors import UserError

VARIABLE = "PATHGROW_DATA"


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The folder of all data, as an absolute path: the one given, else PATHGROW_DATA, else `data` right here."""
    chosen = root or os.environ.get(VARIABLE) or "data"
    try:
        return Path(os.path.abspath(Path(chosen).expanduser()))
    except (TypeError, RuntimeError) as error:  # bytes or a number; ~somebody who is not there
        raise UserError(
            f"data root {chosen!r} was given, the name of a folder is wanted ({error}): give for example 'data'"
        ) from error


def find(name: str, root: Path, folder: str, marker: str) -> Path:
    """The official folder of a data set: in the root, one level below it, or the root itself.

    Parameters
    ----------
    marker
        Something that the folder must hold, so that the root itself can be told from a folder of data sets.
    """
    for place in (root / folder, root):
        if os.path.exists(place / marker):  # unlike Path's, it does not raise where a folder may not be entered
            return place
    below = sorted(place.parent for place in root.glob(f"*/{folder}/{marker}"))
    if len(below) > 1:
        listed = " and ".join(str(place) for place in below)
        raise UserError(f"{name} lies in {root} more than once ({listed}): name one of these folders as data root")
    if below:
        return below[0]
    if os.path.exists(root / folder):
        raise UserError(f"{root / folder} has no {marker}, so it is no copy of {name}: {renew(name, root / folder)}")
    raise UserError(f"{root / folder} was not found, where {name} is looked for: {advice(name, root)}")


def advice(name: str, root: Path) -> str:
    """How to come by a data set, for the end of a sentence."""
    return (
        f"get it with `pathgrow data get {name} --data-root {root}`, or name the folder that holds it with --data-root"
    )


def renew(name: str, folder: Path) -> str:
    """How to replace a copy that is of no use, for the end of a sentence.

    A folder by another name may well be something else that was named by mistake: nobody is told to delete that.
    """
    official = OFFICIAL[name].folder
    if folder.name != official:
        return f"name the folder that holds {official} with --data-root, or get it with `pathgrow data get {name}`"
    return f"delete {folder} and get the data anew with `pathgrow data get {name} --data-root {folder.parent}`"
