"""Who is scored by which model: clients of IFCA and HypCluster choose anew, those never asked as well."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console
from small_runs import digits, go, rounds_of, saved
from torch import nn

from kinfolk.algorithms.hypcluster import HypCluster
from kinfolk.algorithms.ifca import IFCA
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import checks, toy
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.score_again import score_again
from kinfolk.experiment.spec import load, parse
from kinfolk.report.read import load_run
from kinfolk.report.tables import comparison_rows, run_table
from kinfolk.streams import RoundContext, Seed

# The reviewer's federation: 40 clients in four groups, of which a round asks four.
FORTY = (
    "data.clients=40", "data.rows=60", "data.groups=4", "data.test=group",
    "model.name=mlp", "model.hidden=[64]",
    "local.epochs=2", "local.batch=20", "local.lr=0.1", "algorithm.k=4", "run.participation=0.1",
    "run.rounds=20", "run.evaluate_every=10", "run.checkpoint_every=20", "engine.name=batched", "run.seed=1",
)  # fmt: skip


@pytest.fixture(scope="module", params=["ifca", "hypcluster"])
def ended(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "r"
    return folder, go(folder, *FORTY, f"algorithm.name={request.param}")


def by_hand(folder, centres):
    """(choice, accuracy of what was chosen) of every client, in float64 and without any engine."""
    spec = parse((folder / "spec.toml").read_text())
    federation = digits(spec.data, spec.run.seed)
    network = build_parts(spec, federation).learner.module.double().eval()
    found, right = [], []
    for i in range(len(federation.clients)):
        rows, test = (federation.splits[split].rows(i) for split in ("train", "test"))
        losses = []
        for k in range(4):
            network.load_state_dict({n: t[k].double() for n, t in centres.items()})
            with torch.no_grad():
                out = network(federation.x[rows].double())
            losses.append(nn.functional.cross_entropy(out, federation.y[rows]).item())
        found.append(min(range(4), key=losses.__getitem__))
        network.load_state_dict({n: t[found[-1]].double() for n, t in centres.items()})
        with torch.no_grad():
            right.append(
                (network(federation.x[test].double()).argmax(1) == federation.y[test]).double().mean()
            )
    return found, [float(r) for r in right], federation


def test_everybody_is_served_the_model_that_fits_its_training_rows_best_now(ended):
    folder, result = ended
    wanted, right, federation = by_hand(folder, result.state.centres)
    assert result.state.member.tolist() == wanted
    frame = read_scores(folder)
    last = frame[(frame["round"] == result.rounds) & (frame["score"] == "accuracy")].set_index("client")[
        "value"
    ]
    assert last.loc[list(federation.clients)].tolist() == pytest.approx(right)
    trained = saved(folder)[1]["state"]
    stale = trained["member"].tolist()
    assert stale != wanted, "who was not asked of late, or ever, would have been served another model"
    facts = rounds_of(folder)[-1]
    assert facts["groups"]["ari"] == pytest.approx(agreement(wanted, federation.truth)["ari"])
    assert facts["groups"]["ari"] > agreement(stale, federation.truth)["ari"] + 0.1
    assert facts["groups"]["sizes"] == {str(k): wanted.count(k) for k in sorted(set(wanted))}
    moved = sum(a != b for a, b in zip(stale, wanted, strict=True)) / 40
    assert (facts["chosen"]["answered"], facts["chosen"]["switch"]) == (40, pytest.approx(moved))


def test_who_never_took_part_is_counted_and_said(ended):
    folder, _ = ended
    seen: set[int] = set()
    for done, facts in enumerate(rounds_of(folder)[1:]):
        drawn = Seed(1).numpy("sample", done).permutation(40)[:4]
        seen |= set(drawn.tolist())
        assert facts["unheard"] == 40 - len(seen)
    assert facts["unheard"] > 0
    console = Console(width=110)
    with console.capture() as text:
        console.print(run_table(load_run(folder)))
    assert f"Audit: {facts['unheard']} clients had no part in any round" in text.get()
    assert "Before scores 40 clients chose anew (3.08 MB)" in text.get()


def test_choosing_is_paid_for_once_and_is_no_training(ended):
    folder, _ = ended
    facts = rounds_of(folder)
    size = 4 * 4 * (64 * 64 + 64 + 64 * 10 + 10)
    told = [fact["round"] for fact in facts if "chosen" in fact]
    assert told in ([0, 10, 20], [10, 19]), "HypCluster has one model first, and pays a round for its start"
    assert facts[-1]["chosen"]["bytes"] == {"choose": {"down": 40 * size, "up": 40 * 8}}
    assert not any("choose" in fact["bytes"] or "choose" in fact["trained"] for fact in facts)
    (row,) = comparison_rows([load_run(folder)])
    spent = sum(sum(ways.values()) for fact in facts for ways in fact["bytes"].values())
    asked = sum(fact.get("cohort", 0) for fact in facts)
    assert row["bytes_per_client_round"] == pytest.approx((spent + 40 * (size + 8)) / asked)


def test_scoring_again_chooses_alike(ended, tmp_path):
    folder, result = ended
    again = score_again(folder, load(folder / "spec.toml"), tmp_path / "again")
    assert again.summary == result.summary
    (fact,) = rounds_of(tmp_path / "again")
    assert fact["groups"] == rounds_of(folder)[-1]["groups"]
    rest = go(folder, *FORTY, f"algorithm.name={load(folder / 'spec.toml').algorithm.name}", resume=True)
    assert rest.state.member.tolist() == result.state.member.tolist(), "a run that had ended"


@pytest.mark.parametrize("kind", [IFCA, HypCluster])
@pytest.mark.parametrize("check", ["resume", "survives_drop_outs"])
def test_training_goes_on_from_what_was_before_choosing(kind, check):
    checks.CHECKS[check](lambda learner: kind(learner, k=2))


def test_there_is_nothing_to_choose_among_one_model():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    context = RoundContext(Seed(0), 0, federation.clients)
    for method in (IFCA(learner, 1), HypCluster(learner, 1), HypCluster(learner, 3)):
        state = method.init(learner.first, federation.clients, Seed(0))
        assert method.chosen_now(state, context) is None
