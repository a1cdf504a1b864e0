import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from kinfolk.federation.own_data.loaded import LoadedClients
from kinfolk.federation.own_data.report import Report, inspect, report_table
from kinfolk.federation.own_data.tables import read_frame


def drawn(n, seed, classes=2, width=3):
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.normal(size=(n, width)).astype(np.float32), np.arange(n) % classes


def found(names=("no", "yes"), features=(), **clients) -> LoadedClients:
    return LoadedClients(dict(sorted(clients.items())), class_names=names, feature_names=features)


def anomaly(report, what):
    return next((o for o in report.anomalies if o.what == what), None)


def test_nothing_is_odd_about_plain_clients():
    report = inspect(found(ann=drawn(20, 1), bob=drawn(30, 2)))
    assert report.anomalies == []
    assert report.sizes == {"ann": 20, "bob": 30}
    assert report.counts == {"ann": [10, 10], "bob": [15, 15]}
    assert report.balance == {"no": 25, "yes": 25}
    assert report.shape == [3]
    assert report.target is None


def test_small_clients_are_named():
    x, _ = drawn(5, 3)
    report = inspect(found(ann=drawn(20, 1), bob=drawn(1, 2), cat=(x, np.ones(5, int))))
    assert anomaly(report, "single row").clients == ["bob"]
    assert anomaly(report, "single class").clients == ["cat"]


def test_a_client_much_larger_than_the_rest_is_named():
    rest = {f"c{i}": drawn(10, i) for i in range(4)}
    assert anomaly(inspect(found(**rest, big=drawn(101, 9))), "much larger than the rest").clients == ["big"]
    assert anomaly(inspect(found(**rest, big=drawn(100, 9))), "much larger than the rest") is None


def test_classes_of_one_client_or_of_nobody_are_named():
    names = ("a", "b", "c", "d")
    x, _ = drawn(8, 1)
    report = inspect(found(names, ann=(x, np.array([0, 1] * 4)), bob=(x + 1, np.array([0, 3] * 4))))
    lone = anomaly(report, "class at one client only")
    assert lone.clients == ["ann", "bob"]
    assert "class b, d" in lone.line
    assert "1 of 4 classes have no rows: c" in anomaly(report, "class without rows").line
    assert anomaly(inspect(found(names, ann=(x, np.array([0, 1] * 4)))), "class at one client only") is None


def test_rows_at_several_clients_are_counted_exactly():
    (a, ya), (b, yb) = drawn(20, 1), drawn(20, 2)
    b[3:6], yb[3:6] = a[7:10], ya[7:10]  # three rows shared, one of them twice at bob
    b[6], yb[6] = a[7], ya[7]
    b[9], yb[9] = a[12], 1 - ya[12]  # the same features with another label are another row
    b[10] = -0.0
    a[13], ya[13] = 0.0, yb[10]  # minus nought is nought
    shared = anomaly(inspect(found(ann=(a, ya), bob=(b, yb), cat=drawn(9, 3))), "rows at several clients")
    assert shared.clients == ["ann", "bob"]
    assert shared.line.startswith("9 rows (4 distinct) ")


def test_copies_within_a_client_are_counted():
    x, y = drawn(10, 1)
    x[[4, 6, 8]], x[5] = x[2], x[3]  # labels take turns, so these are whole copies
    copies = anomaly(inspect(found(ann=(x, y), bob=drawn(5, 2))), "copies within a client")
    assert copies.clients == ["ann"]
    assert copies.line.startswith("4 rows ")
    y[5] = 1 - y[3]
    assert anomaly(inspect(found(ann=(x, y))), "copies within a client").line.startswith("3 rows ")


def test_constant_columns_are_told_by_client():
    a, b, c = drawn(12, 1), drawn(12, 2), drawn(12, 3)
    a[0][:, 2] = b[0][:, 2] = c[0][:, 2] = 5
    b[0][:, 0] = 7
    c[0][:, :2] = 1
    report = inspect(found(features=("age", "size", "unit"), ann=a, bob=b, cat=c))
    assert "1 of 3 features never change: unit" in anomaly(report, "constant features").line
    assert anomaly(report, "constant client").clients == ["cat"]
    columns = anomaly(report, "constant columns")
    assert columns.clients == ["bob"]
    assert "age (1 client)" in columns.line
    few = inspect(found(features=("age", "size", "unit"), ann=a, bob=(b[0][:9], b[1][:9])))
    assert anomaly(few, "constant columns") is None  # nine rows tell nothing


def test_background_is_not_odd_but_a_blank_client_is():
    images = np.zeros((12, 1, 8, 8), dtype=np.uint8)
    images[:, 0, 3, 3] = np.arange(12)
    more = images.copy()
    more[:, 0, 2:6, 2:6] = np.arange(12 * 16).reshape(12, 4, 4)
    y = np.arange(12) % 2
    report = inspect(found(ann=(images, y), bob=(more, y), cat=(images[:2] * 0, y[:2])))
    assert anomaly(report, "constant client").clients == ["cat"]
    assert anomaly(report, "constant features").line == "48 of 64 features never change"


def test_numbers_to_predict_are_summed_up():
    x, _ = drawn(4, 1)
    y = np.array([0.5, 1.5, -1.0, 3.0], dtype=np.float32)
    report = inspect(found((), ann=(x, y), bob=(x + 1, y + 1)))
    assert report.target == [-1.0, 1.5, 4.0]
    assert report.counts == {}
    assert report.balance == {}
    assert anomaly(report, "whole numbers to predict") is None
    whole = inspect(found((), ann=(x, np.rint(y))))
    assert "store integers if classes are meant" in anomaly(whole, "whole numbers to predict").line


def gappy_report() -> Report:
    n = 60
    frame = pd.DataFrame(
        {"who": [f"[red]client-{i % 20}" for i in range(n)], "y": np.arange(n) % 15, "unit": 1}
    )
    for i in range(15):
        frame[f"a column with a very long name indeed, number {i}"] = np.where(
            np.arange(n) == i, np.nan, np.arange(n)
        )
    return inspect(read_frame(frame, "who", "y", missing="median"))


def test_a_report_is_plain_data_and_back():
    report = gappy_report()
    plain = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert plain["clients"] == 20
    assert plain["rows"] == 60
    assert plain["class_balance"]["3"] == 4
    assert plain["missing"][2]["column"].endswith("number 2")
    assert plain["missing"][2]["row"] == 3
    assert Report.from_dict(plain) == report


@pytest.mark.parametrize("width", [60, 100, 250])
def test_the_table_fits_and_shows_every_part(width):
    file = io.StringIO()
    report = replace(gappy_report(), notes=("many words " * 30,))
    Console(file=file, width=width).print(report_table(report))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= min(width, 100)
    for word in ("Data", "Classes", "Clients, by rows", "Missing values", "Anomalies", "Notes"):
        assert word in text
    assert "[red]client-0" in text  # a name, not a colour
    assert "and 3 more" in text  # classes, and columns with gaps
    assert "and 8 more" in text  # clients


def test_what_was_left_out_is_shown():
    frame = pd.DataFrame({"who": [*"aabb"], "a": [1, 2, np.nan, 4], "y": [0, 1, 0, 1]})
    file = io.StringIO()
    Console(file=file, width=100).print(report_table(inspect(read_frame(frame, "who", "y", missing="drop"))))
    line = next(line for line in file.getvalue().splitlines() if "rows with a missing value" in line)
    assert line.split()[-1] == "1"


def test_shares_of_positions_are_shares_of_those_that_have_a_class():
    y = np.array([[0, 1, 1, -100], [1, 1, -100, -100]])
    report = inspect(LoadedClients({"ann": (np.zeros((2, 3)), y)}, class_names=("no", "yes")))
    file = io.StringIO()
    Console(file=file, width=100).print(report_table(report))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["class", "positions", "share", "clients"] in lines
    assert ["yes", "4", "80.0%", "1"] in lines
    assert ["ann", "2", "2", "yes", "80.0%"] in lines
