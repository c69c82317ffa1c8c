"""How many files a reader opens to understand a mask update, a growth step and a density answer."""

import pytest

from benchmarks import reading


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("RigL mask update", reading.rigl_update),
        ("growth step", reading.growth_step),
        ("density answer", reading.density_answer),
    ],
)
def test_files_of_an_operation(name, operation):
    reading.import_all()
    assert len(files := operation()) <= reading.LIMITS[name], files
