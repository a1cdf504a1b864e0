"""The code on the page about losses and metrics runs, and the page names all that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kinfolk.experiment.spec import parse
from kinfolk.learning.losses import LOSSES
from kinfolk.learning.optim import OPTIMISERS
from kinfolk.learning.row_metrics import METRICS
from kinfolk.learning.schedules import SCHEDULES

PAGE = (Path(__file__).parents[1] / "docs/your-network/losses-and-metrics.md").read_text()


def test_the_blocks_run_one_after_another(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "losses-and-metrics.md", "exec"), names)
    out = capsys.readouterr().out
    index = re.search(r"C-index (0\.\d\d)", out)
    assert index is not None
    assert float(index[1]) > 0.6, "risks are learnt"
    assert "['accuracy', 'auroc', 'calibration', 'loss', 'macro_f1']" in out
    assert out.endswith("4 rounds done\n")


def test_the_tables_are_read_and_every_name_is_on_the_page():
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        assert tomllib.loads(block)
        parse(block)
    for name in (*LOSSES, *METRICS, *OPTIMISERS, *SCHEDULES):
        assert f"`{name}`" in PAGE, name
