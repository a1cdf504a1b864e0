"""Every data set by name: its loaders, its licence, where its files come from; `find` loads one from disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.datasets import digits, leaf, pictures, tables, text
from kinfolk.federation.datasets.digits import DIGITS
from kinfolk.federation.datasets.files import Archive, checksum, corrupt, reading
from kinfolk.federation.datasets.formats import compact_rows, read_compact
from kinfolk.federation.datasets.rows import CENTRED, UNIT, Array, Rows


@dataclass(frozen=True)
class Remote:
    """One file at its public location."""

    url: str
    name: str
    digest: str = ""  # "md5:..." or "sha256:..." as published; empty: none is known


@dataclass(frozen=True)
class Entry:
    """One data set: a line about it, and what is needed to fetch and to load it."""

    line: str
    licence: str
    official: Callable[[Archive], Rows] | None  # reads the published files; None: they are never opened
    files: tuple[str, ...]  # names, any of which tells that the folder holds the published files; (): never
    compact: Callable[[Mapping[str, Array]], Rows] | None = None  # rows from the arrays of the compact .npz
    npz: str = ""
    remote: tuple[Remote, ...] = ()  # empty: cannot be fetched, `note` says why and what to do
    note: str = ""


def _remotes(base: str, digests: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(base + name, name, digest) for name, digest in digests.items())


_IDX = tuple(
    f"{w}-ubyte*" for w in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
_PACKED = (".gz", ".bz2", ".zip")
_UNCHECKED = "no checksum is published: fetch prints the sha256 it got."
_HEART_FILES = tuple(f"processed.{hospital}.data" for hospital in tables.HOSPITALS)
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_SIGN = "https://github.com/ardamavi/Sign-Language-Digits-Dataset/archive/4b09433ef9d5c60602e8805bb54b8aa2428527f8.zip"
_MINES = "https://raw.githubusercontent.com/daizhongxiang/Federated_Bayesian_Optimization/"

CATALOGUE: dict[str, Entry] = {
    "mnist": Entry(
        "MNIST: 70,000 grey digits of 28 by 28, by writer if QMNIST's labels are there",
        "CC BY-SA 3.0; QMNIST's labels BSD 3-clause",
        digits.official_mnist,
        _IDX,
        digits.compact_mnist,
        "mnist.npz",
        _remotes(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            {
                "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
            },
        )
        + _remotes(
            "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
            {
                "qmnist-train-labels-idx2-int.gz": "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
                "qmnist-test-labels-idx2-int.gz": "md5:5b5b05890a5e13444e108efe57b788aa",
            },
        ),
    ),
    "usps": Entry(
        "USPS: 9,298 grey digits of 16 by 16 from envelopes",
        "none stated; research use",
        digits.official_usps,
        ("usps", "usps.t", "usps.bz2", "usps.t.bz2", "zip.train*", "zip.test*"),
        lambda found: compact_rows(found, DIGITS, CENTRED),
        "usps.npz",
        _remotes(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
            {
                "usps.bz2": "md5:ec16c51db3855ca6c91edd34d0e9b197",
                "usps.t.bz2": "md5:8ea070ee2aca1ac39742fdd1ef5ed118",
            },
        ),
        "zip.train.gz and zip.test.gz of hastie.su.domains/ElemStatLearn are read as well.",
    ),
    "svhn": Entry(
        "SVHN: 99,289 colour digits of 32 by 32 from house numbers",
        "non-commercial use only",
        digits.official_svhn,
        ("train_32x32.mat", "test_32x32.mat"),
        lambda found: compact_rows(found, DIGITS, CENTRED),
        "svhn.npz",
        _remotes(
            "http://ufldl.stanford.edu/housenumbers/",
            {
                "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    "sign_digits": Entry(
        "SIGN: 2,062 photos of sign-language digits, grey, 64 by 64; no official test rows",
        "Apache-2.0",
        digits.official_sign,
        ("*.jpg", "*.jpeg", "*.zip"),
        lambda found: compact_rows(found, DIGITS, CENTRED),
        "sign_digits.npz",
        (Remote(_SIGN, "Sign-Language-Digits-Dataset.zip"),),
        "the repository at a fixed commit; " + _UNCHECKED,
    ),
    "cifar10": Entry(
        "CIFAR-10: 60,000 colour pictures of 32 by 32, ten classes",
        "none stated; cite Krizhevsky 2009",
        pictures.official_cifar,
        ("data_batch_*", "test_batch.bin", "cifar-10-*.tar.gz"),
        lambda found: compact_rows(found, pictures.CIFAR, CENTRED),
        "cifar10.npz",
        _remotes(
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        ),
        "the binary version; the Python version is pickled and refused.",
    ),
    "imagenet32": Entry(
        "ImageNet32: 40 classes with more than 1,000 pictures, 32 by 32",
        "ImageNet's terms: non-commercial research and education",
        pictures.official_imagenet32,
        ("train_data_batch_*.npz", "val_data.npz", "Imagenet32_*.zip"),
        note="register at image-net.org, download Imagenet32_train_npz.zip and Imagenet32_val_npz.zip "
        "(downsampled data, npz format) and put both zips, or what is in them, there.",
    ),
    "tiny_imagenet40": Entry(
        "Tiny ImageNet: 40 of its 200 classes, averaged to 32 by 32",
        "ImageNet's terms: non-commercial research and education",
        pictures.official_tiny,
        ("wnids.txt", "tiny-imagenet-200.zip"),
        lambda found: compact_rows(found, found["class_name"].tolist(), CENTRED),
        "tiny_imagenet40.npz",
        _remotes(
            "http://cs231n.stanford.edu/",
            {"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        ),
        "the checksum is the one several public loaders agree on; Stanford publishes none.",
    ),
    "femnist": Entry(
        "LEAF FEMNIST: characters of 28 by 28, 62 classes, by writer",
        "NIST SD19 is public; LEAF BSD 2-clause",
        leaf.official_femnist,
        ("*.json",),
        lambda found: compact_rows(found, leaf.CHARACTERS, UNIT),
        "femnist.npz",
        note="LEAF publishes scripts, not files: run its data/femnist/preprocess.sh "
        "(github.com/TalwalkarLab/leaf) and put its data folder, with train and test or all_data, there.",
    ),
    "celeba": Entry(
        "LEAF CelebA: faces by celebrity, smiling or not",
        "non-commercial research only, no redistribution",
        leaf.official_celeba,
        ("*.json",),
        leaf.compact_celeba,
        "celeba48.npz",
        note="agree to the terms at mmlab.ie.cuhk.edu.hk/projects/CelebA.html, run LEAF's "
        "data/celeba/preprocess.sh (github.com/TalwalkarLab/leaf) and put its data folder, with "
        "raw/img_align_celeba, there.",
    ),
    "shakespeare": Entry(
        "LEAF Shakespeare: 80 characters and the next one, by role",
        "public domain; LEAF BSD 2-clause",
        text.official_shakespeare,
        ("*.json",),
        note="LEAF publishes scripts, not files: run its data/shakespeare/preprocess.sh "
        "(github.com/TalwalkarLab/leaf) and put its data folder, with all_data, there.",
    ),
    "sent140": Entry(
        "LEAF Sent140: tweets by user, 25 hashed words each, negative or positive",
        "Sentiment140: research use, cite Go, Bhayani and Huang 2009; LEAF BSD 2-clause",
        text.official_sent140,
        ("*.json",),
        note="LEAF publishes scripts, not files: run its data/sent140/preprocess.sh "
        "(github.com/TalwalkarLab/leaf) and put its data folder, with train and test or all_data, there.",
    ),
    "manuals": Entry(
        "Manuals: 290 manual pages in eight languages, the next of 95 characters",
        "GPL-3 or later and others; never publish it",
        None,
        (),
        text.compact_manuals,
        "manuals.npz",
        note="there is no published file; use the compact manuals.npz.",
    ),
    "wisdm": Entry(
        "WISDM v1.1: six activities by user, 43 features of a telephone's 10 s windows",
        "free; cite Kwapisz, Weiss and Moore 2010, keep its readme with it",
        tables.official_wisdm,
        ("*transformed.arff", "WISDM_ar*.tar.gz"),
        tables.compact_wisdm,
        "wisdm.npz",
        _remotes(
            "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/",
            {"WISDM_ar_latest.tar.gz": ""},
        ),
        _UNCHECKED,
    ),
    "watch_har": Entry(
        "Watch: seven shoulder exercises by subject, 2 s of six channels",
        "BSD 3-clause (seglearn)",
        None,
        (),
        tables.compact_watch,
        "watch_har.npz",
        note="seglearn publishes a pickle, which is never opened here; use the compact watch_har.npz.",
    ),
    "heart_disease": Entry(
        "Heart disease: 920 patients of four hospitals, 13 features",
        "CC BY 4.0 (UCI)",
        tables.official_heart,
        _HEART_FILES,
        tables.compact_heart,
        "heart_disease.npz",
        _remotes(_UCI + "heart-disease/", dict.fromkeys(_HEART_FILES, "")),
        _UNCHECKED,
    ),
    "landmine": Entry(
        "Landmines: 14,820 radar signatures of 29 fields, 9 features",
        "none stated; research use (Duke)",
        tables.official_landmine,
        ("LandmineData.mat",),
        tables.compact_landmine,
        "landmine.npz",
        _remotes(_MINES + "30a4548606f2ae9bc62c6bf0eb4110177aa3876a/", {"LandmineData.mat": ""}),
        "a copy at a fixed commit of a public repository (Duke's own page could not be confirmed); "
        + _UNCHECKED,
    ),
    "pendigits": Entry(
        "Pendigits: 10,992 digits as 16 pen coordinates; test rows by other writers",
        "CC BY 4.0 (UCI)",
        tables.official_pendigits,
        ("pendigits.tra", "pendigits.tes"),
        tables.compact_pendigits,
        "pendigits.npz",
        _remotes(_UCI + "pendigits/", {"pendigits.tra": "", "pendigits.tes": ""}),
        _UNCHECKED,
    ),
}


def data_root() -> Path:
    """Where data sets live: the folder KINFOLK_DATA names, else the platform's cache folder.

    >>> data_root().is_absolute()
    True
    """
    given = os.environ.get("KINFOLK_DATA")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("kinfolk")) / "data"


def known(name: str) -> Entry:
    """The entry of a data set; a name that is not in the catalogue is an error with the nearest one.

    >>> known("minst")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.name = 'minst': did you mean 'mnist'?
    """
    if name not in CATALOGUE:
        raise KinfolkError("data.name", name, near(name, CATALOGUE))
    return CATALOGUE[name]


def where(name: str, root: Path | None = None) -> Path | None:
    """What `find` would load: the folder of published files, else the compact file, else nothing.

    >>> where("mnist", Path("none")) is None
    True
    """
    entry, root = known(name), data_root() if root is None else Path(root)
    folder, npz = root / name, root / entry.npz
    for path in folder.rglob("*"):
        if any(fnmatch(path.name.lower(), pattern.lower()) for pattern in entry.files) and path.is_file():
            return folder
    return npz if entry.npz and npz.is_file() else None


def verify(folder: Path, remote: tuple[Remote, ...]) -> None:
    """Refuse a file that lies in `folder` and has not the published checksum.

    The right files may have been packed again: unpacked, they are accepted.

    >>> verify(Path("none"), CATALOGUE["mnist"].remote)
    """
    for one in remote:
        path, (algorithm, _, digest) = folder / one.name, one.digest.partition(":")
        if digest and path.is_file() and checksum(path, algorithm) != digest:
            trusted = ", or unpack it if you trust it" if one.name.endswith(_PACKED) else ""
            raise corrupt(path, f"its {algorithm} is not {digest}", "fetch it again" + trusted)


def find(name: str, root: Path | None = None) -> Rows:
    """Load a data set from `root`: its folder of published files if there is one, else the compact file.

    >>> find("usps", Path("none"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.name = 'usps': not in none; ...
    """
    entry, root = known(name), data_root() if root is None else Path(root)
    path = where(name, root)
    if path is None:
        raise KinfolkError("data.name", name, f"not in {root}; {_how(name, entry, root)}")
    if path == root / name:
        verify(path, entry.remote)
        return read_official(name, path)
    assert entry.compact is not None
    with reading(path):
        return entry.compact(read_compact(path))


def read_official(name: str, folder: Path) -> Rows:
    """A data set from its published files in a folder, plain or inside their archives.

    >>> read_official("mnist", Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/train-images-idx3-ubyte': is missing; fetch it or add it
    """
    official = known(name).official
    assert official is not None, "files that are never opened are never found"
    with Archive(folder) as archive, reading(folder):
        return official(archive)


def _how(name: str, entry: Entry, root: Path) -> str:
    """What to do about a data set that is not there."""
    ways = []
    if entry.remote:
        ways.append(f"run `kinfolk data fetch {name}`")
    else:
        ways.append((f"put it into {root / name}: " if entry.files else "") + entry.note.rstrip("."))
    folder = f"the folder with {entry.npz}" if entry.npz else f"the folder with {name}/"
    return ", or ".join([*ways, f"set KINFOLK_DATA to {folder}"])
