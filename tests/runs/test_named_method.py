"""Methods by name: reading `NAME:option=value`, creating them at a density, refusing those that cannot finish."""

import pytest

from pathgrow import methods
from pathgrow.errors import UserError
from pathgrow.runs.named_method import NamedMethod


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("set", "set", {}),
        ("set:drop_fraction=0.2", "set", {"drop_fraction": 0.2}),
        ("set:anneal=constant,by_sign=true", "set", {"anneal": "constant", "by_sign": True}),
        ("mine.module:method", "mine.module:method", {}),
        ("mine.module:method:widths=8,8,rate=1e-3", "mine.module:method", {"widths": [8, 8], "rate": 1e-3}),
    ],
)  # fmt: skip
def test_a_name_with_options(text: str, name: str, options: dict[str, object]) -> None:
    assert NamedMethod.parse(text) == NamedMethod(name, options)


def test_a_method_that_starts_sparse_starts_no_sparser_than_it_ends() -> None:
    assert NamedMethod("granet").at(0.1, 100).start_density == 0.5
    assert NamedMethod("granet").at(0.7, 100).start_density == 0.7
    assert NamedMethod("granet", {"start_density": 0.2}).at(0.3, 100).start_density == 0.3


def test_the_length_of_the_training_reaches_the_schedule() -> None:
    assert NamedMethod("gmp").at(0.1, 123) == methods.create("gmp", density=0.1, num_steps=123)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sett", "unknown finish 'sett': did you mean set"),
        ("static:gamma=1", "takes no options, got gamma"),
        ("set:density=0.1", "density is not an option of finish='set'"),
        ("gmp:num_steps=5", "num_steps is not an option of finish='gmp'"),
        ("set:drop=0.1", "method 'set' has no option 'drop'"),
        ("gcg", "use finish='static' with method='gcg'"),
        ("imp", "prunes between trainings"),
        ("str", "takes no density"),
        ("dense", "takes no density"),
        ("os.path:commonprefix", r"does not import: pass it on the command line \(--finish\), or call"),
    ],
)
def test_what_cannot_finish_a_search(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        NamedMethod.parse(text).check_as_finisher()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_with_a_density_can_finish_or_is_refused_for_its_levels(name: str) -> None:
    if "density" not in methods.defaults(name) or name in ("imp", "lth", "imp_c", "gts"):
        with pytest.raises(UserError):
            NamedMethod(name).check_as_finisher()
    else:
        NamedMethod(name).check_as_finisher()
        for density in (0.001, 0.6, 1.0):
            NamedMethod(name).at(density, num_steps=1)
