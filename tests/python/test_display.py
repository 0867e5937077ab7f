"""What notebooks show: short reprs, and HTML in which names of the user cannot do harm."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from studies import decay, outbreak, small

import twostep as ts

pytestmark = pytest.mark.filterwarnings("ignore::twostep.StudyWarning")
HOSTILE = '<script>alert("x")</script>&amp;'


@pytest.fixture(autouse=True)
def quiet() -> None:
    ts.show_progress(False)


class Read(HTMLParser):
    """Tags, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.depth = 0
        self.feed(page)
        assert self.depth == 0, "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_reprs_are_short_and_say_something() -> None:
    study = outbreak()
    assert "function=decay" in repr(study) and "file=a table of 5 rows" in repr(study) and len(repr(study)) <= 510
    assert repr(study.train()).startswith("Fit(level: exact from 20 runs, Q2 0.9")
    post = study.infer()
    assert repr(post).startswith("Inference(e-lik: rate 0.6") and "methods e-lik, point" in repr(post)
    assert repr(study.report()).startswith("Report(")
    cal = small(infer=ts.Infer(methods=["point"])).calibrate(t_trials=3, i_trials=1)
    assert repr(cal) == "Calibration(point: undecided)"
    for result in (study.train(), post, cal):
        assert len(repr(result)) < 300


def test_html_shows_answer_trust_and_stages() -> None:
    study = outbreak()
    before = Read(study._repr_html_())
    assert "stale" in before.text and "fresh" not in before.text and "a table of 5 rows" in before.text
    post = study.infer()
    assert "stale" not in Read(study._repr_html_()).text
    shown = Read(post._repr_html_())
    assert all(sentence in shown.text for sentence in post.trust)
    assert "half_life" in shown.text and "e-lik" in shown.text
    assert "Q2" not in Read(study.train()._repr_html_()).text.split("Surrogate")[0]
    for page in (post._repr_html_(), study._repr_html_(), study.train()._repr_html_()):
        styles = [attributes.get("style", "") for _, attributes in Read(page).tags]
        # Ground and text are the notebook's: light or dark.
        assert not any("background" in style or "color:#000" in style or "color:black" in style for style in styles)
        assert not any(tag in ("script", "style", "link") for tag, _ in Read(page).tags)


def fragile(rate: float, t: float) -> float:
    if rate < 0.3:
        raise ValueError(HOSTILE)
    return decay(rate, t)


def test_texts_of_the_user_are_text() -> None:
    study = outbreak(simulator=ts.Function(fragile, max_failed=0.5), unknowns={"rate": ts.Unknown((0.2, 1.5), unit=HOSTILE)})
    fit, post = study.train(), study.infer()
    pages = [study._repr_html_(), fit._repr_html_(), post._repr_html_()]
    for page in pages:
        assert not any(tag == "script" for tag, _ in Read(page).tags)
    assert repr(HOSTILE)[1:-1] in Read(pages[0]).text
    assert any(HOSTILE in warning for warning in fit.warnings) and HOSTILE in Read(pages[1]).text


def test_the_report_is_shown_inline() -> None:
    study = small(unknowns={"omega": ts.Unknown((-1, 1), unit=HOSTILE)})
    study.infer()
    report = study.report()
    (tag, attributes), *others = Read(report._repr_html_()).tags
    assert tag == "iframe" and not others
    assert attributes["srcdoc"] == report.path.read_text(encoding="utf-8")
    assert int(attributes["height"]) >= 400 and "allow-same-origin" not in attributes["sandbox"]
