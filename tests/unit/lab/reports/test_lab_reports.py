import csv
import json

import pytest

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab import reports
from evenmesh_lab.files import read_audits, read_ensemble, read_labels
from evenmesh_lab.reports.formats import shown
from evenmesh_lab.similarities import Models, load
from evenmesh_lab.studies import Bootstrap, exposure, vote
from evenmesh_lab.studies.tables import Column, Table, text

QUICK = Bootstrap(num_resamples=100)
NAN = float("nan")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (0.12345, "0.123"),
        (0.0143, "0.0143"),
        (-1234.56, "−1,234.6"),
        (0.0, "0.000"),
        (1.5e-7, "1.50e−07"),
        (12345, "12,345"),
        (NAN, "–"),
        (None, "–"),
        (BootstrapInterval(0.5, 0.25, 0.75, 0.95, "bca", 3, 0), "0.500 [0.250, 0.750]"),
        (BootstrapInterval(0.5, NAN, NAN, 0.95, "bca", 1, 2), "0.500 (2 undefined)"),
    ],
)
def test_numbers_are_shown_for_people(cell, words):
    assert shown(cell) == words


def test_json_has_null_for_what_is_undefined(examples):
    study = exposure.measure(read_audits([examples / "audit.jsonl"]), k=2, bootstrap=QUICK)

    read = json.loads(reports.as_json(study), parse_constant=pytest.fail)
    assert read["study"] == "exposure"
    assert read["rows"][0]["ee_r"] is None
    assert read["rows"][0]["alpha"] is None
    assert read["summaries"][0]["means"]["ee_r"]["undefined"] == 3


def test_csv_has_a_file_for_each_table_and_columns_for_intervals(tmp_path):
    half = BootstrapInterval(0.5, 0.25, NAN, 0.95, "bca", 3, 1)
    summary = Table("summary", "", (text("who", ""), Column("mean", "")), (("a", half), ("b", None)))
    rows = Table("rows", "", (text("q", ""), Column("x", "")), (("1", 0.5), ("2", NAN)))

    written = reports.write_csv((summary, rows), tmp_path / "out.csv")

    assert [path.name for path in written] == ["out-summary.csv", "out.csv"]
    with written[0].open(encoding="utf-8", newline="") as stream:
        assert list(csv.reader(stream)) == [
            ["who", "mean", "mean_low", "mean_high", "mean_undefined"],
            ["a", "0.5", "0.25", "", "1"],
            ["b", "", "", "", ""],
        ]
    with written[1].open(encoding="utf-8", newline="") as stream:
        assert list(csv.reader(stream)) == [["q", "x"], ["1", "0.5"], ["2", ""]]


def test_a_page_escapes_what_it_is_given():
    table = Table("t", "<i>title</i>", (text("q", "<q>"),), (("<script>alert(1)</script>",),))
    report = reports.Report("<b>", [("files", "a&b")], [reports.Section("<s>", [table], {}, ["<note>"])])

    page = reports.page(report)
    for raw in ("<script", "<i>title", "<q>", "<s>", "<note>", "<b>"):
        assert raw not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a&amp;b" in page


def test_a_page_takes_the_files_of_figures_that_are_drawn(examples, monkeypatch):
    from evenmesh_lab import figures
    from evenmesh_lab.figures import style

    study = exposure.measure(
        read_audits([examples / "audit.jsonl"]), read_labels(examples / "labels.jsonl"), k=2, bootstrap=QUICK
    )
    (name, figure), *_ = figures.of(study).items()
    page = reports.page(reports.Report("Exposure", [], [reports.Section("Findings", (), {name: figure})]))
    drawn = {name: figures.to_bytes(figure, "svg")}
    monkeypatch.setattr(style, "to_bytes", lambda *_: pytest.fail("it is drawn again"))
    section = reports.Section("Findings", (), {name: figure}, drawn=drawn)
    assert reports.page(reports.Report("Exposure", [], [section])) == page


def test_a_page_of_a_study_is_one_file_in_light_and_dark(examples):
    from evenmesh_lab import figures

    study = exposure.measure(
        read_audits([examples / "audit.jsonl"]),
        read_labels(examples / "labels.jsonl"),
        k=2,
        bootstrap=QUICK,
    )
    page = reports.page(
        reports.Report("Exposure", [], [reports.Section("Findings", study.tables(), figures.of(study))])
    )

    assert page == reports.page(
        reports.Report("Exposure", [], [reports.Section("Findings", study.tables(), figures.of(study))])
    )
    drawn = {name: figures.to_bytes(figure, "svg") for name, figure in figures.of(study).items()}
    again = reports.Section("Findings", study.tables(), dict.fromkeys(drawn), (), drawn)
    assert page == reports.page(reports.Report("Exposure", [], [again])), "what is drawn is not drawn again"
    assert "prefers-color-scheme: dark" in page
    assert "var(--ink)" in page.partition("<svg")[2]
    assert "#1b1f24" not in page.partition("<svg")[2].partition("</svg>")[0]
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_long_tables_are_cut_on_a_page_and_say_so():
    table = Table("t", "Queries", (text("q", "query"),), tuple((str(n),) for n in range(600)))

    page = reports.page(reports.Report("t", [], [reports.Section("s", [table])]))
    assert "100 more rows are left out here" in page
    assert page.count("<tr>") == 500 + 1


def test_a_vote_goes_through_all_of_them(examples, tmp_path):
    study = vote.measure(
        read_ensemble([examples / "ensemble.jsonl"]),
        vote.Voting((load("token_f1", Models()),)),
        bootstrap=QUICK,
    )

    assert json.loads(reports.as_json(study))["wins"] == [3, 1, 0]
    assert len(reports.write_csv(study.tables(), tmp_path / "v.csv")) == 4
