"""The picture and the page: complete, self-contained, and deaf to what names would like to do."""

import copy
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from pathgrow.checkpoint import RunDir
from pathgrow.errors import UserError
from pathgrow.report import curve_png, page, story, summary, write_all
from pathgrow.report.figure import BLUE, GREEN, VERMILLION, draw
from pathgrow.report.frame import Frame
from pathgrow.report.picture import Picture

INJECTIONS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "<!--",
    "$\\undefined{formula",
]


class Tracer(HTMLParser):
    """What a browser would make of the page: elements, attributes, text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def pixels(png):
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return image.size, {tuple(color) for color in np.asarray(image).reshape(-1, 3)}


def rgb(color):
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


# The picture


def test_the_picture_shows_probes_answer_and_gain(sample_report):
    size, colors = pixels(curve_png(sample_report))
    assert size[0] >= 1200
    assert {rgb(BLUE), rgb(VERMILLION), rgb(GREEN)} <= colors
    sample_report["answer"] |= {"operating_density": None, "interval": None, "gain_density": None}
    _, colors = pixels(curve_png(sample_report))
    assert rgb(VERMILLION) not in colors
    assert rgb(GREEN) not in colors


def test_lines_and_bands_of_the_picture_are_those_of_the_numbers(sample_report):
    """In the PNG, and in the picture of the page."""
    axes = Figure().add_subplot()
    draw(axes, sample_report)
    fit, reference = sample_report["curve"]["fit"], sample_report["reference"]["score"]
    low, high = ([*zip(fit["density"], fit[edge], strict=True)] for edge in ("low", "high"))
    (band,) = axes.collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()} == {*low, *high}
    level = {line.get_ydata()[0] for line in axes.lines if [*line.get_xdata()] == [0, 1]}
    assert level == {reference, reference - 0.01}

    picture, frame = Picture.of(sample_report), Frame.of(sample_report)
    edge = picture.band.split()
    wanted = [
        (picture.left + frame.x(x) * (picture.right - picture.left),
         picture.bottom - frame.y(y) * (picture.bottom - picture.top))
        for x, y in [*high, *low[::-1]]  # once around
    ]  # fmt: skip
    assert np.allclose([[float(number) for number in corner.split(",")] for corner in edge], wanted, atol=0.06)


@pytest.mark.parametrize(("density", "anchored"), [(0.0848, False), (0.99, True)])
def test_the_label_of_an_answer_at_the_right_edge_is_not_cut(sample_report, density, anchored):
    sample_report["answer"]["operating_density"] = density
    label = re.search(r'<text class="answer-text"([^>]*)>', page(sample_report))[1]
    picture = Picture.of(sample_report)
    assert ('text-anchor="end"' in label) == anchored
    x = float(re.search(r' x="([0-9.]+)"', label)[1])
    assert x + (0 if anchored else 55) < picture.width  # five bold letters of 14 pixels


def test_the_picture_is_the_same_every_time_and_leaves_pyplot_alone(sample_report):
    import sys

    assert curve_png(sample_report) == curve_png(copy.deepcopy(sample_report))
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_positions_on_the_page_are_those_of_the_numbers(sample_report):
    picture = Picture.of(sample_report)
    probes = sample_report["curve"]["probes"]
    # Equal factors of density are equal distances; higher scores stand higher.
    xs = [x for x, _, _ in picture.probes]
    steps = np.diff(np.log([row["density"] for row in probes]))
    assert np.allclose(np.diff(xs) / steps, (xs[-1] - xs[0]) / steps.sum(), rtol=1e-2)
    ys = [y for _, y, _ in picture.probes]
    assert np.allclose(np.corrcoef(ys, [row["score"] for row in probes])[0, 1], -1, atol=1e-4)
    assert picture.interval[0] < picture.answer[0] < picture.interval[1]
    assert picture.answer[1] == picture.goal[0] > picture.reference[0]
    assert len(picture.rough) + len(picture.below) == len(sample_report["curve"]["rough"])


# The page


def test_the_page_tells_everything_once_it_is_opened_from_disk(sample_report):
    text = page(sample_report)
    reader = Tracer(text)
    for wanted in (
        "8.48% of the switchable weights keep the accuracy within 1 point of the reference.",
        "How the answer was found",
        "was planted and trained for 10 epochs. It then grew in 13 rounds to 36.4%, with a little training after each.",
        "5 copies were taken along the way, at densities from 2.5% to 36.4%, and trained out to 80 epochs each.",
        "stricter wish than one point",
        "no longer shrinks",
        "layers.0.weight",
        "model_options.widths [128, 128, 128]",
        "probe 5 400 360,000 14.8 G 83.9% 10 s",
        "all 19 436 392,400 15.9 G 89.9% 38 s",
        "7 9.54% 13.09% 24 95.4% 0.138 96.8% 80",
        "dead units 9 \u2192 0",
        "isolated units 0 \u2192 0",
    ):
        assert wanted in reader.text
    assert len(text.encode()) < 300_000
    assert "script" not in reader.elements
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert all(name not in ("src", "href", "style") and not name.startswith("on") for _, name, _ in reader.attributes)


@pytest.mark.parametrize("round", [0, 7])
def test_the_network_handed_back_is_marked_among_the_rounds(sample_report, round):
    sample_report["network"]["round"] = round
    marked = re.findall(r'<tr class="chosen"><th scope="row">(\d+)</th>', page(sample_report))
    assert marked == [str(round)]


def test_layers_are_those_of_the_network_handed_back(sample_report):
    """Which was grown to 9.54% in round 7; by the synthetic rows, layers have 1.7, 0.8 and 0.85 times that."""
    density = 0.02 * 1.25**7
    assert [value for _, value in story.layer_densities(sample_report)] == pytest.approx(
        [1.7 * density, 0.8 * density, 0.85 * density]
    )
    assert "<td>16.2%</td>" in page(sample_report)
    sample_report["topology"] = [row for row in sample_report["topology"] if row["round"] != 7]
    assert story.layer_densities(sample_report) == [], "those of another round are not its own"


def test_the_words_of_the_answer_are_a_list(sample_report):
    """Without their first line, whose place the headline has."""
    sample_report["answer"]["rule"] = "own"
    sample_report["answer"]["words"] = "Half will do.\nSo says <b>the rule</b>.\nStopped: it was enough."
    sample_report["answer"]["reason"] = "it was enough"
    text = page(sample_report)
    listed = re.search(r'<ul class="because">(.*?)</ul>', text, re.S)[1]
    assert re.findall(r"<li>(.*)</li>", listed) == ["So says &lt;b&gt;the rule&lt;/b&gt;.", "Stopped: it was enough."]
    assert "Half will do" not in text
    assert "Growth ended because" not in text
    sample_report["answer"] |= {"words": "", "reason": "growth cannot go on"}
    assert '<ul class="because">' not in page(sample_report)
    assert "<p>Growth ended because growth cannot go on.</p>" in page(sample_report)


def test_the_page_can_be_read_without_seeing_it(sample_report):
    reader = Tracer(page(sample_report))
    assert ("html", "lang", "en") in reader.attributes
    assert reader.elements.count("h1") == 1
    assert reader.elements.count("table") == reader.elements.count("caption")
    pictures = [value for tag, name, value in reader.attributes if tag == "svg" and name == "role" and value == "img"]
    labels = [tag for tag, name, _ in reader.attributes if tag == "svg" and name in ("aria-label", "aria-labelledby")]
    hidden = [tag for tag, name, _ in reader.attributes if tag == "svg" and name == "aria-hidden"]
    assert len(pictures) == len(labels) > 0
    assert len(pictures) + len(hidden) == reader.elements.count("svg")
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {part for _, name, value in reader.attributes if name == "aria-labelledby" for part in value.split()}
    assert wanted <= set(ids)


def test_the_policy_of_the_page_admits_its_own_style_and_nothing_else(sample_report):
    import base64
    import hashlib

    text = page(sample_report)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    policy = dict(part.split(" ", 1) for part in re.search(r'Policy" content="([^"]*)"', text).group(1).split("; "))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in str(policy)


def poisoned(value, poison):
    """Every string of a report, keys of tables of names included, with something nasty in it."""
    if isinstance(value, dict):
        named = {"layers.0.weight", "lr"} & value.keys()
        return {(f"{poison}{key}" if key in named else key): poisoned(item, poison) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, poison) for item in value]
    return f"{poison}{value}" if isinstance(value, str) else value


@pytest.mark.parametrize("poison", INJECTIONS)
def test_no_string_of_a_report_ever_becomes_code(sample_report, poison):
    clean = Tracer(page(sample_report))
    report = poisoned(sample_report, poison)
    report["answer"]["status"] = "found"
    reader = Tracer(page(report))
    assert set(reader.elements) <= set(clean.elements)
    assert not [name for _, name, _ in reader.attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert {name for _, name, _ in reader.attributes} <= {name for _, name, _ in clean.attributes}
    assert poison in reader.text or " ".join(poison.split()) in reader.text
    assert "49" not in reader.text or "49" in clean.text
    assert curve_png(report, dpi=40)
    console = Console(file=io.StringIO(), width=80)
    console.print(summary(report))


# Reports with parts missing


def without_probes(report):
    report["curve"] |= {"probes": [], "fit": None}


def without_reference(report):
    report["reference"] = None


def without_rounds(report):
    report["curve"] |= {"rough": [], "probes": [], "fit": None}
    report["topology"] = []


def one_point(report):
    report["curve"] |= {"rough": report["curve"]["rough"][:1], "probes": [], "fit": None}
    report["answer"] |= {"status": "open", "operating_density": None, "interval": None, "gain_density": None}
    report["reference"] = None


def equal_scores(report):
    for row in (*report["curve"]["rough"], *report["curve"]["probes"]):
        row |= {"score": 0.5, "loss": None}
    report["curve"]["fit"] = None
    report["reference"]["score"] = 0.5
    report["answer"] |= {"status": "flat", "operating_density": None, "interval": None}


def bare(report):
    report["network"] |= {"test": None}
    report["ledger"] |= {"relative": None, "dense_training_flops": None, "phases": []}
    for name in ("config", "topology", "timing", "masks_sha256", "weights_sha256"):
        report[name] = None


def with_dense(report):
    report["dense"] = {"val": {"score": 0.98, "loss": 0.1}, "test": {"score": 0.97, "loss": 0.1}}


def narrow_interval(report):
    report["answer"] |= {"interval": [0.0848, 0.0848]}


def flat_from_zero(report):
    report["answer"] |= {"status": "flat", "operating_density": None, "interval": [0.0, 0.02]}


def open_at_both_ends(report):
    """As a fit leaves it: infinity is null in JSON."""
    report["answer"] |= {"status": "open", "interval": [0.0, None], "gain_interval": [None, None]}


def interval_of_nothing(report):
    report["answer"] |= {"status": "flat", "operating_density": None, "interval": [0.0, 0.0]}


def gain_at_zero(report):
    report["answer"] |= {"gain_density": 0.0, "gain_interval": [0.0, 0.0]}


def interval_far_away(report):
    report["answer"] |= {"status": "unreached", "operating_density": None, "interval": [1e-30, 1.0]}


def answer_far_away(report):
    report["answer"] |= {"gain_density": 1e-12}


def one_round_from_zero(report):
    one_point(report)
    report["answer"] |= {"status": "flat", "interval": [0.0, 0.02]}
    report["topology"] = report["topology"][:1]


def target(report):
    one_point(report)
    report["config"]["target_density"] = 0.2


@pytest.mark.filterwarnings("error")  # matplotlib warns where an axis cannot hold what is drawn
@pytest.mark.parametrize(
    "change",
    [without_probes, without_reference, without_rounds, one_point, equal_scores, bare, with_dense, narrow_interval,
     flat_from_zero, open_at_both_ends, interval_of_nothing, gain_at_zero, interval_far_away, answer_far_away,
     one_round_from_zero, target],
)  # fmt: skip
def test_reports_with_parts_missing_are_shown_as_far_as_they_go(sample_report, change):
    change(sample_report)
    assert "<h1>" in page(sample_report)
    assert pixels(curve_png(sample_report, dpi=40))[0][0] >= 300
    console = Console(file=io.StringIO(), width=80)
    console.print(summary(sample_report))
    assert "None" not in console.file.getvalue()
    assert "None" not in Tracer(page(sample_report)).text
    assert "nan" not in console.file.getvalue()


def test_an_interval_from_zero_begins_at_the_edge_of_the_picture(sample_report):
    usual = Picture.of(sample_report)
    flat_from_zero(sample_report)
    picture = Picture.of(sample_report)
    assert picture.interval[0] == picture.left
    # It ends where the sparsest network stands, and does not squeeze the observed points together.
    assert picture.interval[1] == float(picture.rough_line.split(",")[0])
    assert [x for x, _, _ in picture.probes] == pytest.approx([x for x, _, _ in usual.probes], abs=1)
    interval_far_away(sample_report)
    assert Picture.of(sample_report).probes[0][0] < (picture.left + picture.right) / 2


def test_one_round_and_one_epoch_are_said_in_the_singular(sample_report):
    one_point(sample_report)
    sample_report["curve"]["rough"][0]["epochs"] = 1
    sample_report["network"]["epochs"] = 1
    text = Tracer(page(sample_report)).text
    assert "planted and trained for 1 epoch. It did not grow." in text
    assert "trained 1 epoch " in text
    assert "1 epochs" not in text


# Into the folder


def test_write_all_puts_picture_and_page_into_a_finished_folder_only(tmp_path, sample_report):
    with RunDir.open(tmp_path / "run", {}) as folder:
        with pytest.raises(UserError, match="unfinished run"):
            write_all(folder.path)
        folder.write_report(sample_report)
        written = write_all(folder.path)
    assert [path.name for path in written] == ["curve.png", "report.html"]
    assert written[0].read_bytes() == curve_png(sample_report)
    assert written[1].read_text() == page(sample_report)
