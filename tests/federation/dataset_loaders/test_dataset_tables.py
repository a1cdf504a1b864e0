import io
import tarfile

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import read_official
from kinfolk.federation.datasets.tables import HOSPITALS, filled, standardised

RNG = np.random.default_rng(11)


def by_pandas(x: np.ndarray, owner: list) -> np.ndarray:
    """The stated rule once more: own median, else everybody's, then mean 0 and variance 1 over all."""
    frame = pd.DataFrame(x)
    own = frame.groupby(np.array(owner)).transform("median")
    frame = frame.fillna(own).fillna(frame.median())
    return ((frame - frame.mean()) / frame.std(ddof=0).replace(0, 1)).to_numpy()


def holed(rows: int, columns: int) -> np.ndarray:
    x = np.round(RNG.normal(50, 20, (rows, columns)), 2)
    x[RNG.random(x.shape) < 0.2] = np.nan
    return x


def words(value: float) -> str:
    return "?" if np.isnan(value) else f"{value:g}"


def test_a_constant_column_becomes_zero_even_if_it_is_not_exact():
    x = np.column_stack([np.full(7, 0.1) * np.array([1, 1, 1, 1, 1, 1, 1.0]), np.arange(7.0), np.zeros(7)])
    out = standardised(x)
    assert (out[:, [0, 2]] == 0).all()
    assert out[:, 1].mean() == pytest.approx(0, abs=1e-6)
    assert out[:, 1].std() == pytest.approx(1)
    far = standardised(1e6 + x)  # a spread of two millionths is one
    assert (far[:, [0, 2]] == 0).all()
    assert far[:, 1].std() == pytest.approx(1)


def test_a_column_without_any_value_can_not_be_filled():
    with pytest.raises(ValueError, match="column 'b' has no value in any row"):
        filled(np.array([[1, np.nan], [2, np.nan]]), np.array([0, 1]), ["a", "b"])


@pytest.fixture
def hospitals(tmp_path):
    made = {}
    for hospital, rows in zip(HOSPITALS, (12, 9, 5, 7), strict=True):
        made[hospital] = holed(rows, 13), RNG.integers(0, 5, rows)
    made["switzerland"][0][:, 4] = np.nan  # a hospital that never measured it
    for hospital, (x, y) in made.items():
        lines = [",".join([*map(words, row), str(label)]) for row, label in zip(x, y, strict=True)]
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return tmp_path, made


def test_heart_disease_by_hospital(hospitals):
    folder, made = hospitals
    rows = read_official("heart_disease", folder)
    x, y = (np.concatenate([made[h][i] for h in HOSPITALS]) for i in (0, 1))
    owner = [h for h in HOSPITALS for _ in made[h][1]]
    assert [rows.client_names[c] for c in rows.client] == owner
    assert np.allclose(rows.x, by_pandas(x, owner), atol=1e-5)
    assert rows.y.tolist() == (y > 0).astype(int).tolist()
    assert sum(rows.filled.values()) == np.isnan(x).sum()
    assert rows.filled["chol"] == np.isnan(x[:, 4]).sum()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("1,1,1,1,1,1,1,1,1,1,1,1,1,sick", "row 2, column 'num' holds 'sick'"),
        ("1,1,1,1,1,1,1,1,1,1,1,1,1,?", "row 2, column 'num' holds nan"),
        ("1,1,1,1,1,1,1,1,1,1,1,1,1,5", "row 2, column 'num' holds 5"),
        ("1,1,1,1,1,1,1,1,1,1,1,1,1,0.5", "row 2, column 'num' holds 0.5"),
        ("1,1,1,high,1,1,1,1,1,1,1,1,1,0", "row 2, column 'trestbps' holds 'high'"),
        ("1,1,1,1", "line 2 has 4 columns instead of 14"),
    ],
)
def test_a_bad_line_is_named_by_row_and_column(hospitals, line, wanted):
    folder, _ = hospitals
    (folder / "processed.va.data").write_text("1,1,1,1,1,1,1,1,1,1,1,1,1,0\n" + line)
    with pytest.raises(KinfolkError, match=rf"processed\.va\.data': not used: {wanted}"):
        read_official("heart_disease", folder)


def test_an_empty_or_missing_hospital_is_named(hospitals):
    folder, _ = hospitals
    (folder / "processed.va.data").write_text("\n")
    with pytest.raises(KinfolkError, match=r"processed\.va\.data': not used: it has no rows"):
        read_official("heart_disease", folder)
    (folder / "processed.va.data").unlink()
    with pytest.raises(KinfolkError, match=r"processed\.va\.data': is missing"):
        read_official("heart_disease", folder)


def cellwise(parts: list[np.ndarray]) -> np.ndarray:
    row = np.empty((1, len(parts)), dtype=object)
    for i, part in enumerate(parts):
        row[0, i] = part
    return row


def test_landmine_fields(tmp_path):
    xs = [RNG.normal(3, 2, (n, 9)) for n in (4, 6, 3)]
    ys = [RNG.integers(0, 2, (n, 1)) for n in (4, 6, 3)]
    savemat(tmp_path / "LandmineData.mat", {"feature": cellwise(xs), "label": cellwise(ys)})
    rows = read_official("landmine", tmp_path)
    assert rows.client.tolist() == [0] * 4 + [1] * 6 + [2] * 3
    assert rows.client_names == ("field-0", "field-1", "field-2")
    assert rows.y.tolist() == np.concatenate(ys).ravel().tolist()
    assert np.allclose(rows.x, by_pandas(np.concatenate(xs), [0] * 13), atol=1e-5)


def test_bad_landmine_files_are_named(tmp_path):
    path = tmp_path / "LandmineData.mat"
    x, y = RNG.normal(0, 1, (4, 9)), np.ones((4, 1))
    for feature, label, wanted in [
        ([x], [y[:3]], "do not match"),
        ([x, x], [y], "do not match"),
        ([x[:, :8]], [y], "do not match"),
        ([x], [y * 2], "column 'label' holds 2"),
    ]:
        savemat(path, {"feature": cellwise(feature), "label": cellwise(label)})
        with pytest.raises(KinfolkError, match=rf"LandmineData\.mat': not used: .*{wanted}"):
            read_official("landmine", tmp_path)
    savemat(path, {"feature": cellwise([x])})
    with pytest.raises(KinfolkError, match="has no array 'label'"):
        read_official("landmine", tmp_path)
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(KinfolkError, match=r"LandmineData\.mat': not used"):
        read_official("landmine", tmp_path)


def test_pendigits(tmp_path):
    tables = {half: RNG.integers(0, 101, (n, 17)) for half, n in (("tra", 5), ("tes", 3))}
    for half, table in tables.items():
        table[:, -1] %= 10
        lines = [", ".join(f"{v:3d}" for v in row) for row in table.tolist()]
        (tmp_path / f"pendigits.{half}").write_text("\n".join(lines))
    rows = read_official("pendigits", tmp_path)
    whole = np.concatenate(list(tables.values()))
    assert np.allclose(rows.x, whole[:, :-1] / 50 - 1)
    assert rows.y.tolist() == whole[:, -1].tolist()
    assert rows.test.tolist() == [False] * 5 + [True] * 3
    path = tmp_path / "pendigits.tes"
    for line, wanted in [
        ("101," + "1," * 15 + "3", "0 to 100"),
        ("?," + "1," * 15 + "3", "0 to 100"),
        ("1," * 16 + "three", "row 1, column 'digit' holds 'three'"),
        ("1," * 16 + "11", "column 'digit' holds 11"),
    ]:
        path.write_text(line)
        with pytest.raises(KinfolkError, match=rf"pendigits\.tes': not used: .*{wanted}"):
            read_official("pendigits", tmp_path)


NAMES = [f"{axis}{i}" for axis in "XYZ" for i in range(10)] + [f"F{i}" for i in range(13)]


def arff(x: np.ndarray, users: list[int], acts: list[str]) -> str:
    head = '@relation activity\n\n@attribute "UNIQUE_ID" numeric\n@attribute "user" {1,2}\n'
    head += "".join(f'@attribute "{name}" numeric\n' for name in NAMES)
    head += '@attribute "class" {"Walking","Jogging"}\n\n@data\n'
    rows = zip(x, users, acts, strict=True)
    lines = [f"{i},{u}," + ",".join(map(words, row)) + f",{act}\n" for i, (row, u, act) in enumerate(rows, 1)]
    return head + "% a remark\n" + "".join(lines)


@pytest.mark.parametrize("packed", [False, True])
def test_wisdm_by_user(tmp_path, packed):
    x = holed(20, 43)
    x[:, 30] = 0  # as published, one average is always zero
    users = ([33] * 8 + [2] * 7 + [17] * 5)[::-1]
    x[np.array(users) == 2, 31] = np.nan
    acts = [["Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing"][i % 6] for i in range(20)]
    text = arff(x, users, acts)
    if packed:
        with tarfile.open(tmp_path / "WISDM_ar_latest.tar.gz", "w:gz") as archive:
            for name in ("WISDM_ar_v1.1_raw.txt", "WISDM_ar_v1.1_transformed.arff"):
                body = text.encode() if name.endswith("arff") else b"33,Jogging,1;"
                info = tarfile.TarInfo("WISDM_ar_v1.1/" + name)
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))
    else:
        (tmp_path / "WISDM_ar_v1.1_transformed.arff").write_text(text)
    rows = read_official("wisdm", tmp_path)
    assert np.allclose(rows.x, by_pandas(x, users), atol=1e-5)
    assert rows.client_names == ("user-02", "user-17", "user-33")
    assert [rows.client_names[c] for c in rows.client] == [f"user-{u:02d}" for u in users]
    assert [rows.class_names[i] for i in rows.y] == [act.lower() for act in acts]
    assert sum(rows.filled.values()) == np.isnan(x).sum()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda t: t.replace("Jogging\n", "Flying\n"), "row 2, column 'class' holds 'Flying'"),
        (lambda t: t.replace("2,33,", "2,ann,"), "row 2, column 'user' holds 'ann'"),
        (lambda t: t.replace("2,33,", "2,33,fast,"), "has 47 columns instead of 46"),
        (lambda t: t.replace("2,33,7", "2,33,x"), "row 2, column 'X0' holds 'x'"),
        (lambda t: t.replace('"UNIQUE_ID"', '"id"'), "columns are not"),
        (lambda t: t.partition("@data")[0], "no @attribute and @data"),
        (lambda t: t[:-30], "columns instead of 46"),
    ],
)
def test_bad_wisdm_files_are_named(tmp_path, change, wanted):
    x = np.full((2, 43), 7.0)
    text = arff(x, [33, 33], ["Walking", "Jogging"])
    (tmp_path / "WISDM_ar_v1.1_transformed.arff").write_text(change(text))
    with pytest.raises(KinfolkError, match=rf"transformed\.arff': not used: .*{wanted}"):
        read_official("wisdm", tmp_path)
