"""Arrays out of MATLAB's .mat files."""

from __future__ import annotations

from kinfolk.federation.datasets.files import Archive, reading
from kinfolk.federation.datasets.rows import Array


def read_mat(archive: Archive, name: str, *keys: str) -> list[Array]:
    """The arrays under `keys` of a .mat file; one that is cut short or something else is named.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, Archive(Path(folder)) as archive:
    ...     _ = (Path(folder) / "a.mat").write_bytes(b"text" * 99)
    ...     read_mat(archive, "a.mat", "X")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = '.../a.mat': not used: Unknown mat file type, ...; replace it
    """
    from scipy.io import loadmat  # slow to import, wanted by two data sets only
    from scipy.io.matlab import MatReadError

    with reading(archive.folder / name):
        try:
            found = loadmat(archive.file(name), variable_names=keys)
        except MatReadError as error:  # an error of its own kind, no ValueError
            raise ValueError(str(error)) from error
        if absent := [key for key in keys if key not in found]:
            raise ValueError(f"has no array {absent[0]!r}")
    return [found[key] for key in keys]
