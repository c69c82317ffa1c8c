"""The networks of a run: one row each, the returned one known, and the procedure in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pathgrow.report import networks
from pathgrow.report.schema import ReferenceReport, RunReport, Score
from tests.support.sample_report import (
    ledger,
    phase,
    point,
    short_probe_report,
    shrunk_report,
    training_report,
    with_answer,
    with_curve,
)


def test_the_procedure_names_rounds_and_probes() -> None:
    growth, probes = networks.procedure(short_probe_report())
    assert growth.startswith("Grew from 2.0% to 36.4% density in 13 rounds, with rough training after each.")
    assert probes == (
        "Trained 6 probes (2.5%, 4.9%, 9.5%, 14.9%, 36.4%, 100% density) for 16 epochs each; the answer is estimated "
        "from these scores."
    )
    mixed = with_curve(short_probe_report(), rounds=(), probes=(point(0, 0.02, 8, 0.5), point(-1, 1.0, 16, 0.97)))
    assert networks.procedure(mixed)[0].startswith("Trained 2 probes (2.0%, 100% density) for 8 to 16 epochs each;")


def test_each_round_has_its_probe_beside_it(sample_report: RunReport) -> None:
    headings, rows = networks.table(sample_report)
    assert headings == ["round", "density", "of model", "epochs", "accuracy", "loss", "probe", "epochs"]
    assert [row[0] for row in rows] == [str(round) for round in range(14)]
    assert rows[7] == ["7", "9.5%", "13.1%", "24", "95.45%", "0.138", "96.79%", "80"]
    assert [row[0] for row in rows if row[6]] == ["1", "4", "7", "9", "13"]
    headings, rows = networks.table(training_report())
    assert (headings[-1], rows) == ("loss", [["0", "12.3%", "23.4%", "57", "91.11%", "0.300"]])


def test_a_score_that_is_the_loss_is_listed_once(sample_report: RunReport) -> None:
    losses = replace(sample_report, config={**sample_report.config, "mode": "min"})
    headings, rows = networks.table(losses)
    assert headings == ["round", "density", "of model", "epochs", "loss", "probe", "epochs"]
    assert rows[7] == ["7", "9.5%", "13.1%", "24", "0.95446", "0.96794", "80"]


def test_the_dense_network_is_the_last_row(sample_report: RunReport) -> None:
    assert networks.table(short_probe_report())[1][-1] == ["dense", "100%", "100%", "", "", "", "97.60%", "16"]
    trained = with_answer(
        sample_report, dense=Score(score=0.981), reference=ReferenceReport(score=0.981, kind="dense", epochs=80)
    )
    assert networks.table(trained)[1][-1] == ["dense", "100%", "100%", "", "", "", "98.10%", "80"]


@pytest.mark.parametrize("grown", [0, 3])
def test_the_networks_of_a_pruning_search_are_listed_by_phase(grown: int) -> None:
    report = with_answer(shrunk_report(grown=grown), dense=Score(score=0.981, loss=0.07))
    headings, rows = networks.table(report)
    num_pruned = len(report.curve.probes)
    assert headings == ["phase", "density", "of model", "epochs", "accuracy", "loss"]
    assert [row[0] for row in rows] == [
        *(f"round {k}" for k in range(grown)), "trained", "trained", *num_pruned * ["pruned"], "finished", "dense",
    ]  # fmt: skip
    densities = [float(row[1].strip("%")) for row in rows if row[0] == "pruned"]
    assert densities == sorted(densities, reverse=True), "as they were pruned"
    assert rows[-2] == ["finished", "9.5%", "13.1%", "76", "96.90%", "0.101"]
    assert rows[-1] == ["dense", "100%", "100%", "80", "98.10%", "0.070"]
    assert networks.returned_row(report) == len(rows) - 2
    base = report.curve.rounds[-1]
    network = replace(report.network, density=base.density, epochs=base.epochs, val=Score(score=base.score))
    assert networks.returned_row(replace(report, network=network)) == grown + 1


def test_the_network_without_pruning_is_the_control() -> None:
    report = shrunk_report()
    with_control = with_curve(report, finished=(point(11, 1.0, 60, 0.977), *report.curve.finished))
    assert [row[:2] for row in networks.table(with_control)[1][-2:]] == [["control", "100%"], ["finished", "9.5%"]]


def test_the_procedure_of_a_pruning_search() -> None:
    assert networks.procedure(shrunk_report(lowest=0.1)) == [
        "Trained the dense network for 40 epochs, in two phases.",
        "Pruned it in 4 rounds (40.0%, 25.2%, 15.9%, 10.0% density).",
        "Finished 1 network (9.5% density); the answer is read from the scores of the pruned and the finished "
        "networks.",
    ]
    grown = networks.procedure(shrunk_report(grown=3))
    assert grown[0].startswith("Grew from 12.5% to 50.0% density in 2 rounds")
    assert grown[1] == "Trained the network at 50.0% density for 40 epochs, in two phases."
    given = replace(shrunk_report().curve.rounds[0], epochs=0)
    pretrained = with_curve(shrunk_report(), rounds=(given,))
    assert networks.procedure(pretrained)[0] == "Evaluated the pretrained model."
    assert [row[0] for row in networks.table(pretrained)[1][:2]] == ["pretrained", "pruned"]
    report = shrunk_report()
    with_control = with_curve(report, finished=(point(11, 1.0, 60, 0.977), *report.curve.finished))
    assert networks.procedure(with_control)[-1].startswith(
        "Finished 2 networks (100%, 9.5% density, one of them without pruning as a control);"
    )


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        ([(1.0, 20), (1.0, 40)], "Trained the dense network for 40 epochs, in two phases."),
        (
            [(0.1, 1), (0.5, 2), (0.5, 20), (0.5, 40)],
            "Trained the network at 50.0% density for 40 epochs, in two phases.",
        ),
        ([(0.1, 1), (0.5, 2), (0.5, 8)], "Trained the network at 50.0% density for 8 epochs."),
    ],
)
def test_the_procedure_counts_the_phases_without_the_growth(rounds: list[tuple[float, int]], sentence: str) -> None:
    points = tuple(point(k, density, epochs, 0.9) for k, (density, epochs) in enumerate(rounds))
    assert sentence in networks.procedure(with_curve(shrunk_report(), rounds=points))


def test_a_dense_baseline_that_nobody_asked_for_has_its_reason() -> None:
    report = shrunk_report()

    def sentence(config: dict[str, object]) -> str:
        reference = ReferenceReport(score=0.98, kind="dense", epochs=160)
        found = networks.procedure(replace(with_answer(report, reference=reference), config=config))
        return next(line for line in found if "baseline" in line)

    assert sentence({"reference": "dense"}) == "Trained a dense baseline for 160 epochs."
    assert sentence({}) == "Trained a dense baseline for 160 epochs: half of it does not predict the score."
    report = with_curve(report, rounds=report.curve.rounds[1:])
    assert sentence({}) == (
        "Trained a dense baseline for 160 epochs, because the budget is too short to predict its score from half of it."
    )


def test_the_network_that_was_pruned_is_not_the_dense_baseline() -> None:
    for grown, pruned in ((0, "the first network"), (3, "the network at 50.0% density")):
        report = shrunk_report(grown=grown)
        assert any(line.startswith("Pruned it in ") for line in networks.procedure(report))
        reference = ReferenceReport(score=0.98, kind="dense", epochs=80)
        *_, baseline, rounds, _ = networks.procedure(with_answer(report, reference=reference))
        assert baseline.startswith("Trained a dense baseline for 80 epochs")
        assert rounds.startswith(f"Pruned {pruned} in ")


@pytest.mark.parametrize(
    ("kind", "compared"),
    [
        ("dense", "the dense baseline"),
        ("given", "the reference"),
        ("pretrained", "the pretrained model"),
        ("estimated", None),
    ],
)
def test_networks_that_are_compared_directly_are_the_answer(kind: str, compared: str | None) -> None:
    report = with_answer(shrunk_report(), reference=ReferenceReport(score=0.98, kind=kind))
    two = (point(2, 0.2, 80, 0.97), point(3, 0.1, 80, 0.96))
    report = with_curve(report, probes=(), finished=two)
    read = "" if compared is None else f"; the answer is read from their scores, compared with {compared}"
    assert networks.procedure(report)[-1] == f"Finished 2 networks (20.0%, 10.0% density){read}."
    phases = [phase(f"final-{k}", 80, network.density) for k, network in enumerate(two, 1)]
    assert networks.procedure(replace(report, ledger=ledger(phases)))[-1] == (
        f"Trained 2 networks (20.0%, 10.0% density) from the initial weights for 80 epochs, with gradual pruning{read}."
    )
    unpruned = with_curve(report, finished=(point(2, 1.0, 80, 0.97),))
    assert networks.procedure(unpruned)[-1] == "Finished 1 network (100% density)."
    one = with_curve(report, finished=two[:1])
    assert (
        networks.procedure(one)[-1] == f"Finished 1 network (20.0% density){read.replace('their scores', 'its score')}."
    )
    too_few = with_answer(one, status="open", details={"rounds": 0})
    assert networks.procedure(too_few)[-1] == "Finished 1 network (20.0% density)."
