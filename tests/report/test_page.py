"""The report as a file: its numbers against tables, what it refuses, hostile names, sizes, and no torch."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import make_comparison, make_run
from made_up_groups import make_choice, make_grouped

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_json
from kinfolk.report.page import html
from kinfolk.report.page.charts import attackers, clients, convergence, costs, membership, scores
from kinfolk.report.page.load import load
from kinfolk.report.page.sections import fill
from kinfolk.report.page.store import Store, as_json, pack
from kinfolk.report.page.write import Report, write_report
from kinfolk.report.read import Run, load_runs
from kinfolk.report.tables import comparison_frame

NAN = math.nan
HOSTILE = "</script><script>alert(1)</script><!--"


def unpacked(packed: Any, columns: list[Any]) -> list[Any]:
    """What `assets/data.js` makes of a column."""
    if isinstance(packed, int):
        return unpacked(columns[packed], columns)
    if isinstance(packed, list):
        return packed
    if "words" in packed:
        return [packed["words"][place] for place in packed["at"]]
    if "tile" in packed:
        return unpacked(packed["tile"], columns) * packed["times"]
    runs = packed["runs"]
    return [value for value, many in zip(runs[::2], runs[1::2], strict=True) for _ in range(many)]


def data_of(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None, name
    return json.loads(found[1])


def table_of(page: str, chart: str) -> dict[str, list[Any]]:
    columns = data_of(page, "shared-data")["columns"]
    return {
        head: unpacked(place, columns) for head, place in data_of(page, f"{chart}-data")["table"]["columns"]
    }


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_grouped(tmp_path_factory.mktemp("page") / "c")


@pytest.fixture(scope="module")
def runs(grouped: Path) -> tuple[Run, ...]:
    return load([grouped]).runs


def test_a_report_needs_no_torch(grouped: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from kinfolk.report.page.write import write_report; "
        f"write_report([{str(grouped)!r}], {str(tmp_path / 'r.html')!r}); "
        "assert not {'torch', 'vl_convert', 'playwright'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["a", "b", ""]))))
def test_packed_columns_hold_the_same_values(values: list[Any]) -> None:
    for repeated in (values, values * 7, [value for value in values for _ in range(9)]):
        found = unpacked(pack(list(repeated)), [])
        assert found == repeated
        assert list(map(type, found)) == list(map(type, repeated))


def test_equal_columns_are_stored_once_and_rows_may_lack_cells() -> None:
    store = Store()
    first = store.rows([{"client": f"c{i % 5}", "x": i / 3} for i in range(40)])
    second = store.rows([{"x": i / 3, "y": None if i else 1} for i in range(40)])
    assert first["columns"]["x"] == second["columns"]["x"]
    assert unpacked(second["columns"]["y"], store.columns) == [1] + [None] * 39
    assert store.rows([{"a": 1}, {"b": 2}])["columns"].keys() == {"a", "b"}


def test_the_page_lets_only_its_own_script_run_and_asks_nobody(grouped: Path, tmp_path: Path) -> None:
    page = write_report([grouped], tmp_path / "r.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1, "everything else is data"
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", outside)
    assert not re.search(r"\son\w+=", outside), "no handlers in attributes"
    assert "sourceMappingURL" not in page


def test_the_curves_end_where_the_table_of_the_comparison_does(runs: tuple[Run, ...]) -> None:
    frame = comparison_frame(runs).set_index("algorithm")
    by = {chart.name: chart.table for chart in convergence.by_costs(runs)}
    assert set(by) == {"convergence-rounds", "convergence-bytes", "convergence-seconds"}
    ends = {name: table.groupby("method").last() for name, table in by.items()}
    for title in frame.index:
        end = ends["convergence-rounds"].loc[title]
        assert end["mean accuracy, %"] == pytest.approx(100 * frame.at[title, "macro"])
        assert end["± over seeds"] == pytest.approx(100 * frame.at[title, "macro_std"])
        assert end["round"] == 6
        megabytes = 6 * frame.at[title, "bytes_per_client_round"] / 1e6
        assert ends["convergence-bytes"].at[title, "bytes"] == pytest.approx(megabytes)
        # The line from before training counts as a round there.
        seconds = 7 * frame.at[title, "seconds_per_round"]
        assert ends["convergence-seconds"].at[title, "seconds"] == pytest.approx(seconds)


def test_of_choices_before_scores_only_the_one_for_the_round_counts() -> None:
    rounds = [
        {"round": r, "bytes": {"update": {"up": 2e6}}, "chosen": {"bytes": {"choose": {"down": 5e6}}}}
        for r in (1, 2)
    ]
    run = Run.of({"title": "ifca", "seed": 0, "federation": {"clients": 1}}, {"value": []}, rounds)
    assert convergence.spent(run)["megabytes"].tolist() == [7.0, 9.0]
    chart = costs.ledger([run])
    assert chart is not None
    assert chart.table["megabytes"].sum() == 9.0


def test_a_method_that_sends_nothing_is_a_level_line(runs: tuple[Run, ...]) -> None:
    chart = next(one for one in convergence.by_costs(runs) if one.name == "convergence-bytes")
    rows = [row for row in chart.spec["data"]["values"] if row["method"] == "local"]
    reach = max(row["x"] for row in chart.spec["data"]["values"])
    assert [row["x"] for row in rows] == [0.0, reach]
    assert rows[0]["mean"] == rows[1]["mean"]
    assert any("local" in note for note in chart.notes)


def test_what_diverged_is_drawn_apart_from_the_last_sound_point_on() -> None:
    facts = {"title": "fedavg", "seed": 0, "diverged": {"text": "", "models": {"centre": {"round": 2}}}}
    values = {"round": [0, 1, 2, 3], "client": "a", "value": [0.1, 0.5, 0.1, 0.1]}
    chart = convergence.by_costs([Run.of(facts, values)])[0]
    rows = [(row["x"], row["mean"], row["diverged"]) for row in chart.spec["data"]["values"]]
    sound, gone = [(0, 10.0, False), (1, 50.0, False)], [(1, 50.0, True), (2, 10.0, True), (3, 10.0, True)]
    assert rows == sound + gone
    assert "Diverged: fedavg." in chart.says


def test_gains_are_what_tables_say_client_by_client(runs: tuple[Run, ...]) -> None:
    chart = clients.gains_over_all(runs)
    assert chart is not None
    assert chart.title == "Gain of every client with fesem k=3 over fedavg"
    table = chart.table.set_index("client")
    ends = pd.concat([run.scores[run.scores["round"] == 6].assign(title=run.title) for run in runs])
    means = 100 * ends.pivot_table(index="client", columns="title", values="value")
    for client in means.index:
        expected = means.at[client, "fesem k=3"] - means.at[client, "fedavg"]
        assert table.at[client, "gain, points"] == pytest.approx(expected)
    gains = (table["gain, points"] > 0.5).sum()
    assert f"{gains} of 12 clients gain more than 0.5 points" in chart.says


@pytest.mark.parametrize(("score", "gained"), [("accuracy", True), ("mse", False)])
def test_whether_more_is_a_gain_goes_with_the_score(score: str, gained: bool) -> None:
    def run(title: str, value: float) -> Run:
        values = {"client": ["a", "b"], "value": [value, value + 0.1], "score": score}
        return Run.of({"title": title, "algorithm": title, "seed": 0}, values)

    chart = clients.gains_over_all([run("fedavg", 0.5), run("ifca", 0.7)])
    assert chart is not None
    assert set(chart.table["verdict"]) == {"gains" if gained else "loses"}


def test_the_bytes_of_a_method_are_those_of_its_table(runs: tuple[Run, ...]) -> None:
    chart = costs.ledger(runs)
    assert chart is not None
    frame = comparison_frame(runs).set_index("algorithm")
    training = chart.table[chart.table["training"]].groupby("method")["megabytes"].sum()
    for title in ("fedavg", "fesem k=3"):
        expected = frame.at[title, "bytes_per_client_round"] * 12 * 6 / 1e6
        assert training[title] == pytest.approx(expected)
    assert "Nothing was sent in training by local." in chart.notes
    time = costs.time(runs)
    assert time is not None
    assert time.table.groupby("method")["seconds"].sum()["fedavg"] == pytest.approx(0.1 + 6 * 1.75)


def test_small_kinds_of_messages_are_drawn_together_and_told_apart_in_the_table() -> None:
    sent = {f"kind{i:02d}": {"up": 1e6 * (i + 1)} for i in range(12)}
    chart = costs.ledger(
        [Run.of({"title": "slfed", "seed": 0}, {"value": []}, [{"round": 1, "bytes": sent}])]
    )
    assert chart is not None
    rows = chart.spec["data"]["values"]
    assert [row["amount"] for row in rows if row["part"] == "all others"] == [1 + 2 + 3 + 4]
    assert sum(row["amount"] for row in rows) == chart.table["megabytes"].sum() == 78
    assert len(rows) == 9
    assert len(chart.table) == 12


def test_a_kind_that_one_seed_never_sent_counts_as_nothing_there() -> None:
    kinds = ({"update": {"up": 4e6}}, {"update": {"up": 4e6}, "warm": {"up": 2e6}})
    runs = [
        Run.of({"title": "fesem", "seed": seed}, {"value": []}, [{"round": 1, "bytes": sent}])
        for seed, sent in enumerate(kinds)
    ]
    chart = costs.ledger(runs)
    assert chart is not None
    assert chart.table.set_index("kind")["megabytes"].to_dict() == {"update": 4.0, "warm": 1.0}


def test_switches_of_groups_are_seen_where_they_happened(runs: tuple[Run, ...]) -> None:
    best, other = membership.over_rounds(runs)
    assert (best.name, other.name) == ("membership-fesem k=3", "membership-ifca k=3")
    rows = [row for row in best.spec["data"]["values"] if row["client"] == "client-01"]
    assert [(row["group"], row["first"], row["last"]) for row in rows] == [(2, 1, 2), (1, 3, 6)]
    assert rows[0]["to"] == rows[1]["from"] == 2.5
    assert len(best.spec["data"]["values"]) == 14
    assert "2 of 12 clients changed group after the start, the last in round 3" in best.says
    agreement = membership.agreement(runs)
    assert agreement is not None
    assert agreement.table["mean"].tolist()[:6] == pytest.approx([10 / 12] * 2 + [1.0] * 4)


def test_attackers_are_those_of_the_run_that_names_them() -> None:
    def run(seed: int, attacker: str) -> Run:
        facts = {"title": "fedavg", "algorithm": "fedavg", "seed": seed, "attackers": [attacker]}
        found = Run.of(facts, {"client": ["ann", "bob", "dan"], "value": [0.5, 0.6, 0.7]})
        found.audit.extend({"event": "rejected", "client": who, "reason": "norm"} for who in ("eve", "mal"))
        return found

    runs = [run(0, "eve"), run(1, "mal")]
    chart = attackers.rejected(runs)
    assert chart is not None
    assert chart.says == "Rejected replies: fedavg 4, of attackers 2."
    honest = attackers.honest(runs)
    assert honest is not None
    assert honest.table.loc[0, ["lowest", "median", "highest"]].tolist() == pytest.approx([50, 60, 70])
    assert attackers.honest([Run.of({"title": "fedavg", "seed": 0}, {"value": [0.5]})]) is None


def test_a_report_of_a_choice_of_k_alone_and_beside_runs(grouped: Path, tmp_path: Path) -> None:
    choice = make_choice(tmp_path / "k")
    names = [chart.name for chart in Report.of([choice]).charts]
    assert names == ["k-score", "k-silhouette", "k-stability"]
    page = write_report([choice]).read_text()
    assert "digits" in page
    assert "12 of 12 clients" in page
    both = Report.of([grouped, choice, choice])
    assert [chart.name for chart in both.charts if chart.name.startswith("k-score")] == [
        "k-score-1",
        "k-score-2",
    ]


def test_the_verdict_is_on_top(grouped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(runs: Any, score: str, choice: Any) -> Any:
        one = SimpleNamespace(rule="groups", text=f"{len(runs)} runs & `<b>`", weight="warning")
        return SimpleNamespace(headline="Groups <i>", sentences=(one,))

    monkeypatch.setattr("kinfolk.report.page.write.verdict", verdict)
    page = write_report([grouped], tmp_path / "r.html").read_text()
    assert '<p class="headline">Groups &lt;i&gt;</p>' in page
    assert (
        '<span class="weight">Warning:</span> 8 runs &amp; <code><span>&lt;b&gt;</span></code></li>' in page
    )
    assert page.index("Groups &lt;i&gt;") < page.index("section-comparison-h")


@pytest.mark.parametrize(
    "clients", [(HOSTILE,), ("مستشفى", "clinic 🏥", "'\"><img src=x onerror=a>", HOSTILE)]
)
def test_hostile_names_of_clients_and_algorithms_stay_text(tmp_path: Path, clients: tuple[str, ...]) -> None:
    titles = ("local", f"fedavg {HOSTILE}", "ifca k=3")
    folder = make_grouped(tmp_path / "c", ("local", "fedavg", "ifca k=3"), clients=clients)
    for path in folder.glob("fedavg*/run.json"):
        write_json(path, {**json.loads(path.read_text()), "title": titles[1], "engine": HOSTILE})
    report = Report.of([folder])
    page = report.write(tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(re.findall("<script", page)) == 1 + len(re.findall('<script type="application/json"', page))
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    table = table_of(page, "clients-table")
    assert set(table["client"]) == set(clients)
    assert all(re.fullmatch(r"[a-z0-9-]+", chart.name) for chart in report.charts)


def test_half_a_letter_is_spelled_out(tmp_path: Path) -> None:
    folder = make_grouped(tmp_path / "c", ("local",), seeds=1)
    path = next(folder.glob("*/run.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine": "\ud800 alone"}))
    assert r"\ud800 alone" in write_report([folder], tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_run_that_was_killed_is_shown_and_said_to_be_unfinished(tmp_path: Path) -> None:
    folder = make_grouped(tmp_path / "c", ("fedavg",), seeds=1, status="running", reason="")
    page = write_report([folder / "fedavg-seed0"]).read_text()
    assert "fedavg seed 0 has not finished: it runs still or was killed; 6 rounds are recorded." in page
    with (folder / "fedavg-seed0" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 7, "cohor')
    assert "6 rounds are recorded" in write_report([folder]).read_text()


def test_a_run_without_any_score_yet_shows_what_there_is(tmp_path: Path) -> None:
    make_run(tmp_path / "r", {}, status="running")
    report = Report.of([tmp_path / "r"])
    assert [chart.name for chart in report.charts] == ["runs"]
    assert "There are no scores yet." in report.write().read_text()


def test_records_of_an_older_version_are_read(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "c", {"local": 0.6, "fedavg": 0.7}, seeds=1, clients=5, rounds=4)
    for path in folder.glob("*/run.json"):
        old = json.loads(path.read_text())
        write_json(path, {key: old[key] for key in ("algorithm", "seed", "status")})
    for path in folder.glob("*/rounds.jsonl"):
        path.write_text("".join(json.dumps({"round": r}) + "\n" for r in range(1, 5)))
    names = [chart.name for chart in Report.of([folder]).charts]
    assert "convergence-rounds" in names
    assert not {"convergence-bytes", "bytes", "time", "agreement"} & set(names)


def test_scores_that_are_no_numbers_leave_gaps(tmp_path: Path) -> None:
    values = {"centre": {"accuracy": {0: [0.1, NAN], 1: [NAN, NAN], 2: [0.5, NAN]}}}
    make_run(tmp_path / "r", values)
    page = write_report([tmp_path / "r"]).read_text()
    assert "NaN" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert table_of(page, "convergence-rounds")["mean accuracy, %"] == [10, None, 50]
    nobody = make_run(tmp_path / "n", {"centre": {"accuracy": {0: [NAN], 1: [NAN]}}})
    assert [chart.name for chart in Report.of([nobody]).charts][-1] == "runs"
    diverged = make_run(tmp_path / "d", {"centre": {"loss": {0: [1.0, 2.0], 1: [math.inf, 0.1]}}})
    assert Report.of([diverged]).write().exists()


def test_forty_algorithms_and_one_client(tmp_path: Path) -> None:
    titles = [f"fedprox mu={i}" for i in range(40)]
    folder = make_grouped(tmp_path / "c", titles, seeds=1, clients=("only",), rounds=2)
    report = Report.of([folder])
    curves = next(chart for chart in report.charts if chart.name == "convergence-rounds")
    assert any("Of 40 methods the 12 best are in colour" in note for note in curves.notes)
    assert len(table_of(report.write().read_text(), "comparison")["algorithm"]) == 40


def test_many_clients_are_put_together_and_that_is_said(
    grouped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (scores, clients, convergence, membership):
        monkeypatch.setattr(module, "MOST_CLIENTS", 11)
    monkeypatch.setattr("kinfolk.report.page.write.MOST_CLIENTS", 11)
    report = Report.of([grouped])
    by = {chart.name: chart for chart in report.charts}
    assert "clients-table" not in by
    for name in ("clients-sorted", "gains-over-all", "membership-fesem-k-3"):
        assert any("More than 11 clients" in note for note in by[name].notes), name
        assert "client" not in by[name].spec["data"]["values"][0], name
    page = report.write().read_text()
    assert data_of(page, "shared-data")["clients"] == []
    assert 'class="find" role="search" hidden' in page
    counted = table_of(page, "gains-over-all")
    assert sum(counted["clients"]) == 12


def test_a_large_table_stands_in_the_page_in_part_and_in_its_data_whole(tmp_path: Path) -> None:
    names = tuple(f"c{i:03d}" for i in range(150))
    folder = make_grouped(tmp_path / "c", ("local", "fedavg"), seeds=1, clients=names, rounds=1)
    page = write_report([folder]).read_text()
    body = page[page.index('data-table="clients-table"') :].partition("</table>")[0]
    assert body.count("<tr>") == 1 + html.ROWS
    assert "The first 100 of 150 rows; the file has all." in page
    assert table_of(page, "clients-table")["client"] == list(names)


def test_different_federations_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    a = make_grouped(tmp_path / "a", ("local",), seeds=1)
    b = make_grouped(tmp_path / "b", ("fedavg",), seeds=1)
    spec = next(b.glob("*/spec.toml"))
    spec.write_text(spec.read_text().replace("alpha = 1.0", "alpha = 0.1"))
    with pytest.raises(KinfolkError, match=r"differ in data\.alpha \(1\.0 and 0\.1\)"):
        Report.of([a, b])
    spec.write_text(spec.read_text().replace("alpha = 0.1", "alpha = 1.0"))
    path = next(b.glob("*/run.json"))
    facts = json.loads(path.read_text())
    write_json(path, {**facts, "federation": {**facts["federation"], "fingerprint": "0123456789"}})
    with pytest.raises(KinfolkError, match=r"local seed 0 and fedavg seed 0.*fingerprints f0 and 01234567"):
        Report.of([a, b])
    write_json(path, {**facts, "own": {"data.alpha": 0.1}})
    spec.write_text(spec.read_text().replace("alpha = 1.0", "alpha = 0.1"))
    assert len(Report.of([a, b]).material.runs) == 2, "a method may have a setting of its own"


def test_the_same_folder_twice_counts_once_and_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    a = make_grouped(tmp_path / "a", ("local",), seeds=1)
    assert len(load([a, a / "local-seed0"]).runs) == 1
    b = make_grouped(tmp_path / "b", ("local",), seeds=1)
    with pytest.raises(KinfolkError, match="occurs twice"):
        Report.of([a, b])


def test_another_score_is_shown_everywhere_and_an_unknown_one_refused(grouped: Path, tmp_path: Path) -> None:
    page = write_report([grouped], tmp_path / "r.html", "loss").read_text()
    assert "Mean loss over clients, by round" in page
    assert "accuracy" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    with pytest.raises(KinfolkError, match="did you mean 'accuracy'"):
        Report.of([grouped], "acuracy")


def test_runs_are_read_with_one_score_only(grouped: Path) -> None:
    whole = {run.path: run for run in load_runs(grouped)}
    for run in load([grouped]).runs:
        expected = whole[run.path].scores.query("score == 'accuracy'").reset_index(drop=True)
        pd.testing.assert_frame_equal(run.scores, expected)


def test_what_cannot_be_written_leaves_nothing_behind(
    kinfolk: Any, grouped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        (("nowhere",), "run = 'nowhere': holds no run"),
        ((grouped, "--out", "r.pdf"), "--out = 'r.pdf': give a name that ends in .html"),
        ((grouped, "--format", "gif"), "--format = 'gif': known: pdf, png, svg"),
        ((grouped, "--score", "acuracy"), "score = 'acuracy': did you mean 'accuracy'?"),
    ]
    for words, line in cases:
        code, out, err = kinfolk("report", *words)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {line}")
        assert len(err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, err = kinfolk("report", grouped, "--out", "r.html", "--figures", "f")
    assert (code, "pip install 'kinfolk[report]'" in err) == (2, True)
    (tmp_path / "file").write_text("in the way")
    code, _, err = kinfolk("report", grouped, "--out", "file/r.html")
    assert (code, "cannot be written" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_writes_beside_the_first_run_and_says_where(kinfolk: Any, grouped: Path) -> None:
    code, out, _ = kinfolk("report", grouped)
    assert (code, out) == (0, f"report:  {grouped / 'report.html'}\n")
    assert json.loads(kinfolk("report", grouped, "--json")[1]) == {
        "report": str(grouped / "report.html"),
        "figures": [],
    }


def test_figures_are_drawn_as_files(grouped: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="no vl-convert-python: the extra `report`")
    report = Report.of([grouped])
    pictures = [chart for chart in report.charts if chart.spec]
    paths = report.write_figures(tmp_path, ("svg",))
    assert [path.name for path in paths] == [f"{chart.name}.svg" for chart in pictures]
    assert len(paths) >= 10
    one = next(chart for chart in pictures if chart.name == "gains-over-all")
    from kinfolk.report.page.export import write_figures

    starts = {path.suffix: path.read_bytes()[:4] for path in write_figures([one], tmp_path)}
    assert starts == {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert "fesem k=3" in (tmp_path / "convergence-rounds.svg").read_text()


def test_equal_records_make_equal_pages(grouped: Path, tmp_path: Path) -> None:
    pages = [write_report([grouped], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_json_in_a_page_cannot_end_its_script() -> None:
    text = as_json({"<!--": "</script>&\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"<!--": "</script>&\u2028\u2029"}


def test_names_of_charts_are_those_of_files_and_differ(runs: tuple[Run, ...], grouped: Path) -> None:
    material = load([grouped])
    twice = [charts for _, entries in fill(material) for one in entries for charts in one.charts]
    assert len({chart.name for chart in twice}) == len(twice)
