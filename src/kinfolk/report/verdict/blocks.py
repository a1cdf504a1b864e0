"""What forbids a conclusion: then nobody is called better, and the headline says why before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.report.against import Row
from kinfolk.report.read import Run
from kinfolk.report.unlike import unlike
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.folder import not_begun
from kinfolk.report.verdict.sentence import Sentence, count, gap, listed, say
from kinfolk.scores import about

# With two seeds the interval for two equal methods leaves out zero in 7 draws of 100 where seeds shift all
# clients alike, with three in 4 (benchmarks/verdict_noise.py --part pairs); 5 is what it promises.
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Block:
    """A reason why there is no conclusion: the full sentence, and a few words for the headline."""

    sentence: Sentence
    reason: str


def blocks(known: Evidence) -> list[Block]:
    """All reasons, the gravest first; none if a ranking is allowed."""
    found = [
        other_data(known),
        unfinished(known),
        rising(known),
        falling(known),
        unseen(known),
        few_seeds(known),
    ]
    return [one for one in found if one]


def other_data(known: Evidence) -> Block | None:
    """Runs of one seed that have not the same clients and rows."""
    torn = unlike(known.runs).torn
    if not torn:
        return None
    text = (
        f"Not all runs have the same clients and rows ({count(len(torn), 'seed')}): they cannot be compared."
    )
    return Block(
        say("other-data", text, "warning", seeds=len(torn)), "the runs are about different clients or rows"
    )


def unfinished(known: Evidence) -> Block | None:
    """Runs that were stopped or killed, that still go on, or that a comparison names and has not begun."""
    left, missing = open_runs(known.runs), not_begun(known.runs)
    if not left and not missing:
        return None
    said, runs = [], len(known.runs) + len(missing)
    numbers = {"unfinished": len(left), "not_begun": len(missing), "runs": runs}
    if left:
        first, more = left[0], f" and {len(left) - 1} more" if left[1:] else ""
        done, planned = rounds_done(first), rounds_planned(first)
        where = f"{done} of {planned} rounds" if planned else count(done, "round")
        said.append(f"{_not(len(left), runs)} finished: {first.title} seed {first.seed} ({where}){more}")
        numbers |= {"done": done, "planned": planned}
    if missing:
        said.append(f"{_not(len(missing), runs)} begun: {listed(missing)}")
    short = _not(len(left) + len(missing), runs) + " finished"
    return Block(say("unfinished", "; ".join(said) + ".", "warning", **numbers), short)


def _not(some: int, of: int) -> str:
    return f"{some} of {count(of, 'run')} {'is' if some == 1 else 'are'} not"


def open_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that have not come to their end; a run that was stopped because it diverged has."""
    return [run for run in runs if not _has_ended(run)]


def _has_ended(run: Run) -> bool:
    status = run.facts.get("status", "finished")
    return status == "finished" or (status == "diverged" and bool(run.facts.get("diverged")))


def rounds_done(run: Run) -> int:
    """The last round that a run has finished."""
    return int(run.rounds[-1]["round"]) if run.rounds else max(run.scored.seen.rounds, default=0)


def rounds_planned(run: Run) -> int:
    """The rounds that a run was asked for; 0 if its folder does not say."""
    return int((run.spec.get("run") or {}).get("rounds") or 0)


def rising(known: Evidence) -> Block | None:
    """A mean that still became better by more than what counts as settled: the budget was too short."""
    up = {who: change for who, (change, share) in known.moves.items() if share > 1}
    if not up:
        return None
    names = list(dict.fromkeys(title for title, _ in sorted(up, key=lambda who: -abs(up[who]))))
    most = max(up.values(), key=abs)
    lead = f"{names[0]} still gained {gap(most, known.score)} in the last quarter of its rounds"
    more = f", and {listed(names[1:])} gained too" if names[1:] else ""
    may = "The order may still change" if known.titles[1:] else "The result may still change"
    text = f"The budget was too short: {lead}{more} ({_settled(known.score)}). {may}."
    return Block(say("rising", text, "warning", methods=len(names), most=most), lead)


def falling(known: Evidence) -> Block | None:
    """A mean that became worse by as much: it swings, or longer training harms it."""
    down = {who: change for who, (change, share) in known.moves.items() if share < -1}
    if not down:
        return None
    names = list(dict.fromkeys(title for title, _ in sorted(down, key=lambda who: -abs(down[who]))))
    most = max(down.values(), key=abs)
    lead = f"{names[0]} lost {gap(most, known.score)} in the last quarter of its rounds"
    more = f", and {listed(names[1:])} lost too" if names[1:] else ""
    text = (
        f"Training is not steady: {lead}{more} ({_settled(known.score)}). It swings, or more rounds harm it."
    )
    return Block(say("falling", text, "warning", methods=len(names), most=most), lead)


def _settled(score: str) -> str:
    return "settled: at most 1 point" if about(score).percent else "settled: at most 2 % of the value"


def unseen(known: Evidence) -> Block | None:
    """Rows that were scored too seldom to see whether they still move."""
    never = [row for row in known.rows if (row["algorithm"], row["model"]) not in known.moves]
    if not never:
        return None
    names = list(dict.fromkeys(str(row["algorithm"]) for row in never))
    times = _scored_times(known, never[0])
    every = "every method" if len(names) == len(known.titles) > 1 else listed(names)
    text = (
        f"It cannot be seen whether training is finished: {every} was scored too seldom "
        f"({'once' if times == 1 else count(times, 'time')} after the start), and not between half and three "
        "quarters of the rounds."
    )
    return Block(
        say("unseen", text, "warning", methods=len(names), scored=times),
        "it cannot be seen whether training is finished",
    )


def _scored_times(known: Evidence, row: Row) -> int:
    """How often a row was scored after some training, in the run that did so least."""
    runs = [run for run in known.of[row["algorithm"]] if known.score in run.metrics]
    rounds = [sum(number > 0 for number in run.scored.seen.rounds) for run in runs]
    return min(rounds, default=0)


def few_seeds(known: Evidence) -> Block | None:
    """Fewer seeds than tell a difference between methods from chance; of one method alone it is a caution."""
    many = len(known.seeds)
    if many >= FEWEST_SEEDS or len(known.titles) < 2:
        return None
    have = f"the methods share {count(many, 'seed')}"
    text = f"Too few seeds: {have}, and at least {FEWEST_SEEDS} are needed to tell a difference from chance."
    return Block(
        say("few-seeds", text, "warning", seeds=many, needed=FEWEST_SEEDS),
        f"{have}, and a difference needs {FEWEST_SEEDS} to be told from chance",
    )


def reasons(found: Sequence[Block]) -> str:
    """The first two in one line, and how many more there are."""
    more = [f"and {count(len(found) - 2, 'more reason')}"] if len(found) > 2 else []
    return "; ".join([*(one.reason for one in found[:2]), *more])
