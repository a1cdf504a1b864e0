"""Runs with noise: what they record, when they stop, and that nothing gives back what was spent."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import NormalDist

import pytest
import torch
from small_runs import SPEC, digits, go, rounds_of, saved
from torch import nn
from typer.testing import CliRunner

from kinfolk.algorithms import ALGORITHMS
from kinfolk.cli.commands import app
from kinfolk.engines.coordinator import Coordinator
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import override
from kinfolk.experiment.spending import FILE
from kinfolk.privacy import gaussian
from kinfolk.report.read import Run, privacy
from kinfolk.streams import Seed, sample
from kinfolk.trained import load
from kinfolk.types import Client

# Of a method whose clients all count alike anyway, and of one whose weights have to be set.
ALIKE = ("privacy.mode=server", "privacy.noise=4", "privacy.delta=0.01")
SERVER = (*ALIKE, "algorithm.weights=uniform")
LOCAL = ("privacy.mode=local", "privacy.noise=4", "privacy.delta=0.01")


def delta_of(epsilon: float, releases: float, z: float) -> float:
    """Balle and Wang's theorem 8, for one mechanism in place of many."""
    mu, cdf = math.sqrt(releases) / z, NormalDist().cdf
    return cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("changes", [SERVER, LOCAL], ids=["server", "local"])
def test_every_round_tells_what_was_spent_and_so_does_the_run(tmp_path, changes):
    go(tmp_path / "run", *changes)
    told = [fact["privacy"]["epsilon"] for fact in rounds_of(tmp_path / "run")[1:]]
    assert len(told) == 3
    for done, epsilon in enumerate(told, 1):
        assert delta_of(epsilon, done, 4.0) == pytest.approx(0.01, rel=1e-4)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]
    assert facts["epsilon"] == told[-1]
    assert (facts["noise"], facts["delta"], facts["clip"]) == (4.0, 0.01, 1.0)
    run = Run(tmp_path / "run", json.loads((tmp_path / "run" / "run.json").read_text()))
    assert privacy(run).startswith(f"epsilon {told[-1]:.3g} at delta 0.01")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output
    assert "privacy" in shown
    assert f"epsilon {told[-1]:.3g}" in " ".join(shown.split())


def test_noise_that_follows_from_epsilon_spends_it_in_the_rounds_there_are(tmp_path):
    mine = ("privacy.mode=server", "privacy.epsilon=2", "privacy.delta=0.01", "algorithm.weights=uniform")
    got = go(tmp_path / "run", *mine, "run.rounds=4")
    assert got.rounds == 4
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]
    assert facts["epsilon"] == pytest.approx(2.0, rel=1e-4)
    assert delta_of(2.0, 4, facts["noise"]) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("changes", [SERVER, LOCAL], ids=["server", "local"])
def test_a_run_ends_before_the_round_that_would_spend_too_much(tmp_path, changes):
    go(tmp_path / "free", *changes)
    told = [fact["privacy"]["epsilon"] for fact in rounds_of(tmp_path / "free")[1:]]
    limit = (told[1] + told[2]) / 2
    got = go(tmp_path / "run", *changes, f"privacy.epsilon={limit}", "run.rounds=9")
    assert got.rounds == 2
    assert "budget spent: epsilon would be" in got.reason
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["status"], facts["privacy"]["epsilon"]) == ("finished", told[1])
    assert saved(tmp_path / "run")[0] == 2
    assert got.summary["centre"]["accuracy"]["macro"] >= 0
    # Going on changes nothing: there is no room.
    again = go(tmp_path / "run", *changes, f"privacy.epsilon={limit}", "run.rounds=12", resume=True)
    assert again.rounds == 2
    assert "budget spent" in again.reason


def test_a_budget_for_less_than_one_round_is_refused(tmp_path):
    with pytest.raises(KinfolkError, match=r"privacy.epsilon = 0.01: one round costs"):
        go(tmp_path / "run", *SERVER, "privacy.epsilon=0.01")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_goes_on_with_its_account(tmp_path):
    go(tmp_path / "run", *SERVER)
    go(tmp_path / "run", *SERVER, "run.rounds=5", resume=True)
    go(tmp_path / "whole", *SERVER, "run.rounds=5")
    ends = [rounds_of(tmp_path / name)[-1]["privacy"]["epsilon"] for name in ("run", "whole")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert delta_of(ends[0], 5, 4.0) == pytest.approx(0.01, rel=1e-4)


def test_rounds_after_the_last_checkpoint_stay_spent_though_they_are_played_again(tmp_path, monkeypatch):
    usual, left = Coordinator.perform, [4]

    def dying(self, request, context, rehearse=True):
        if getattr(request, "task", "") == "update":
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("the power is gone")
        return usual(self, request, context, rehearse)

    monkeypatch.setattr(Coordinator, "perform", dying)
    changes = (*SERVER, "run.rounds=6", "run.checkpoint_every=10")
    with pytest.raises(RuntimeError, match="power"):
        go(tmp_path / "run", *changes)
    monkeypatch.undo()
    assert saved(tmp_path / "run")[0] == 0
    go(tmp_path / "run", *changes, resume=True)
    # Four rounds were released, of which none was kept; six more came after.
    end = rounds_of(tmp_path / "run")[-1]["privacy"]["epsilon"]
    assert delta_of(end, 10, 4.0) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("how", ["gone", "torn"])
def test_a_run_whose_account_cannot_be_read_does_not_go_on(tmp_path, how):
    go(tmp_path / "run", *SERVER)
    path = tmp_path / "run" / FILE
    if how == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text()[:-5])
    with pytest.raises(KinfolkError, match="what was spent is not known"):
        go(tmp_path / "run", *SERVER, "run.rounds=5", resume=True)


def test_clients_pay_for_the_rounds_in_which_they_are_asked(tmp_path):
    got = go(tmp_path / "run", *SERVER, "run.rounds=6", "run.participation=0.5")
    clients = tuple(Client(c) for c in build_parts(override(SPEC, SERVER)).federation.clients)
    often = {c: sum(c in sample(Seed(0), r, clients, 0.5) for r in range(6)) for c in clients}
    assert len(set(often.values())) > 1
    paid = json.loads((tmp_path / "run" / FILE).read_text())
    assert {c: paid.get(c, 0.0) * 16 for c in clients} == pytest.approx(often)
    facts = json.loads((got.folder / "run.json").read_text())["privacy"]
    assert delta_of(facts["epsilon"], max(often.values()), 4.0) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("changes", [SERVER, LOCAL], ids=["server", "local"])
def test_the_same_seed_brings_other_noise(tmp_path, changes):
    models = []
    for name in ("a", "b"):
        got = go(tmp_path / name, *changes, "run.rounds=1")
        models.append(torch.cat([t.flatten() for t in got.state.model.values()]))
    assert float((models[0] - models[1]).abs().min()) > 0
    with pytest.raises(KinfolkError, match=r"privacy.seed = 3: no such setting"):
        go(tmp_path / "c", *changes, "privacy.seed=3")


def test_one_client_moves_the_model_by_clip_over_the_cohort_whatever_it_sends(tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))
    mine = (*SERVER, "run.rounds=1", "privacy.clip=0.05")
    honest = go(tmp_path / "a", *mine).state.model
    bad = go(tmp_path / "b", *mine, "run.attack=scaled", "run.attackers=0.25").state.model
    moved = math.sqrt(sum(float((bad[n] - t).double().square().sum()) for n, t in honest.items()))
    assert moved <= 2 * 0.05 / 4 * (1 + 1e-3)


def test_nobody_is_refused_beside_others_on_whom_it_would_then_weigh(tmp_path):
    strict = ("run.rounds=3", "guard.norm=1.5", "run.attack=scaled", "run.attackers=0.25")
    go(tmp_path / "free", *strict)
    assert "median" in (tmp_path / "free" / "audit.jsonl").read_text()
    go(tmp_path / "private", *strict, *SERVER)
    assert "median" not in (tmp_path / "private" / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("privacy.mode=sever",), "privacy.mode = 'sever': give one of none, server, local"),
        (("privacy.clip=0",), "privacy.clip = 0.0: give a number above 0"),
        ((*SERVER, "privacy.noise=0"), "privacy.noise = 0.0: give noise, or the epsilon"),
        ((*SERVER, "privacy.delta=0.25"), "privacy.delta = 0.25: is no protection among 4 clients"),
        ((*ALIKE, "algorithm.weights=size"), "algorithm.weights = 'size': with privacy.mode"),
        ((*SERVER, "algorithm.aggregate.name=median"), "algorithm.aggregate.name = 'median'"),
        ((*SERVER, "run.patience=3", "data.valid=0.2"), "run.patience = 3: follows from scores"),
        ((*SERVER, "run.target=0.5"), "run.target = 0.5: follows from scores"),
        ((*SERVER, "run.keep=best", "data.valid=0.2"), "run.keep = 'best': follows from scores"),
        ((*SERVER, "run.on_divergence=rollback"), "run.on_divergence = 'rollback': follows from scores"),
        ((*SERVER, "run.quorum=0.5"), "run.quorum = 0.5: with"),
        ((*SERVER, "run.pictures=rows"), "run.pictures = 'rows': rows have no noise"),
        ((*LOCAL, "run.attack=scaled", "run.attackers=0.25"), "run.attack = 'scaled': attackers would clip"),
        (("algorithm.name=ifca", *LOCAL), "its clients send 'choice' ('update'), which has no noise"),
        (("algorithm.name=slfed", *LOCAL), "its clients write each other without noise"),
        (("algorithm.name=mdicfl", *LOCAL), "its clients send 'labels'|its clients send 'shape'"),
        (("algorithm.name=local", *LOCAL), "algorithm.name = 'local': sends no models"),
        (("algorithm.name=clustered_fl", *ALIKE), "'clustered_fl': releases more than noisy means"),
        (("algorithm.name=ifca", "algorithm.restarts=2", *ALIKE), "algorithm.restarts = 2"),
        (("algorithm.name=fesem", *ALIKE), "algorithm.start.name = 'warm_kmeans'"),
    ],
)
def test_what_would_promise_too_much_is_refused_in_one_line(tmp_path, changes, said):
    with pytest.raises(KinfolkError) as caught:
        go(tmp_path / "run", *changes)
    assert any(part in str(caught.value) for part in said.split("|"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_page_tells_of_every_method_whether_it_is_refused():
    page = (Path(__file__).parents[2] / "docs/privacy/differential-privacy.md").read_text()
    table = page.split("## Which methods")[1].split("**Groups")[0].splitlines()
    told: dict[str, tuple[bool, bool]] = {}
    for line in (line for line in table if line.startswith("| `")):
        names, server, local = (cell.strip() for cell in line.strip("|").split("|"))
        told |= dict.fromkeys(re.findall("`([a-z_]+)`", names), (refused(server), refused(local)))
    assert told == {
        name: (not can(name, *METHODS.get(name, ALIKE)), not can(name, *LOCAL)) for name in ALGORITHMS
    }


def refused(cell: str) -> bool:
    return cell.startswith("refused")


def can(name: str, *changes: str) -> bool:
    """Whether a run may begin, with a network that has a body as well as a head."""
    spec = override(SPEC, [f"algorithm.name={name}", "model.name=mlp", *changes])
    try:
        build_parts(spec, federation=digits(SPEC.data, 0))
    except KinfolkError as error:
        return not error.field.startswith("algorithm.")
    return True


def test_networks_with_buffers_are_refused(tmp_path):
    normed = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    with pytest.raises(KinfolkError, match="the network has buffers"):
        go(tmp_path / "run", *SERVER, network=normed)


METHODS = {
    "fedavg": SERVER,
    "fedavg_tuned": SERVER,
    "fedprox": SERVER,
    "fedsgd": SERVER,
    "fedem": SERVER,
    "feddist": ALIKE,
    **dict.fromkeys(("apfl", "ditto", "fedala", "fedavgm", "knn_per"), SERVER),
    # Steps as long as what was moved, so that the noise that is in them can be measured.
    **dict.fromkeys(
        ("fedadagrad", "fedadam", "fedyogi"),
        (*SERVER, "algorithm.beta1=0.0", "algorithm.tau=1000.0", "algorithm.server_lr=2000.0"),
    ),
    "ifca": ALIKE,
    "fesem": (*ALIKE, "algorithm.start.name=distinct_models", "algorithm.reseed_after=0",
              "algorithm.patience=0", "algorithm.prox_scaling=plain"),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_nothing_of_a_reply_reaches_a_servers_models_past_the_noise(tmp_path, monkeypatch, name):
    """With updates clipped to nothing and no noise, models stay where they were, whatever clients reply."""
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))
    got = go(tmp_path / "run", f"algorithm.name={name}", *METHODS[name], "privacy.clip=1e-30", "run.rounds=2")
    parts = build_parts(override(SPEC, [f"algorithm.name={name}", *METHODS[name]]))
    first = parts.algorithm.init(parts.learner.first, parts.federation.clients, parts.seed)
    for field in ("model", "centres", "components"):
        for leaf, t in getattr(first, field, {}).items():
            assert torch.equal(getattr(got.state, field)[leaf], t)


@pytest.mark.parametrize("name", METHODS)
def test_a_servers_models_have_noise_on_every_number(tmp_path, name):
    models = []
    for run in ("a", "b"):
        got = go(tmp_path / run, f"algorithm.name={name}", *METHODS[name], "run.rounds=1")
        field = next(f for f in ("model", "centres", "components") if hasattr(got.state, f))
        models.append(torch.cat([t.flatten() for t in getattr(got.state, field).values()]))
    apart = models[0] - models[1]
    assert float(apart.abs().min()) > 0
    # Two runs of which each has noise of 4 x clip over a cohort of four, or over fewer in a group.
    assert float(apart.std()) > 0.5 * math.sqrt(2) * (0.1 if name == "fedsgd" else 1)


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
@pytest.mark.parametrize("engine", ["batched", "wire", "workers"])
def test_every_engine_leads_to_the_same_noisy_means(tmp_path, monkeypatch, engine, name):
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.ones(count, dtype=torch.float64))
    mine = (f"algorithm.name={name}", *METHODS[name], "privacy.clip=0.2", "run.rounds=2")
    loop, other = (go(tmp_path / e, *mine, f"engine.name={e}").state for e in ("loop", engine))
    for field in ("model", "centres"):
        for leaf, t in getattr(loop, field, {}).items():
            assert torch.allclose(getattr(other, field)[leaf], t, atol=1e-4)


def test_the_card_of_a_model_has_the_promise_and_that_of_a_clients_own_has_none(tmp_path):
    ran = go(tmp_path / "run", "algorithm.name=fedavg_tuned", *SERVER)
    spent = json.loads((ran.folder / "run.json").read_text())["privacy"]["epsilon"]
    cards = []
    for name, more in (("all", {"kind": "centre"}), ("own", {"client": "client-01", "kind": "fine-tuned"})):
        load(ran.folder).export(tmp_path / name, **more)
        cards.append((tmp_path / name / "README.md").read_text())
    assert f"| differential privacy | epsilon {spent:.3g} at delta 0.01" in cards[0]
    assert "| differential privacy | none: it is one client's own |" in cards[1]


def test_a_run_without_a_table_has_no_account(tmp_path):
    got = go(tmp_path / "run")
    assert "privacy" not in json.loads((got.folder / "run.json").read_text())
    assert not (Path(got.folder) / FILE).exists()
