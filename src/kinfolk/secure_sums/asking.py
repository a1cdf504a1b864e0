"""The server's half: one request whose replies are folded into means becomes the requests of a secure sum.

    the task itself      clients train, keep the model, and reply the rest
    sums.list            who is in which group, by which weights
    sums.open, share     members share their models out among one another
    sums.ready           who has all shares; else once more, among fewer
    sums.note, answer    members note that they answer, and answer: parts of a sum
    sums.end             all is forgotten but that note

The server sees who takes part, groups, weights, the sums, and what a task replies besides its model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.fold import MeansOfGroups, client_weights
from kinfolk.script import Ask, Exchange, Request, play
from kinfolk.secure_sums.holding import COUNTS, FINE, FIT, REASONS, UNFIT
from kinfolk.secure_sums.member import MOST, list_of
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.shares.context import Context, check_secrecy
from kinfolk.shares.rejections import find_disputes
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import layers_of, to_tree
from kinfolk.streams import RoundContext
from kinfolk.types import Client, IndexedMessages, Message, Stack, Tree

# How often shares are made: with a scheme that needs all answers, once more without who was lost.
TRIES = 2

Perform = Callable[[Request], Any]
Dialogue = Generator[Request, Any, Any]
# Weights by client, by group.
Lists = dict[int, dict[Client, float]]


@dataclass(frozen=True)
class Asking:
    """Performs requests, those for means by secure sums."""

    spec: SecureSumsSpec
    trees: Mapping[str, tuple[str, Tree]]  # of each task: the key of what is summed, and its form
    log: Callable[..., None] = lambda event, **facts: None
    # Told of those whose model is in no sum, and of each why if that is for its numbers.
    lost: Callable[[Mapping[Client, str]], None] = lambda who: None

    def around(self, perform: Perform, context: RoundContext) -> Perform:
        """What performs the requests of one round's script, out of what performs plain ones."""
        numbers = count(context.round * MOST)

        def act(request: Request) -> Any:
            if not isinstance(request, Ask) or request.task not in self.trees:
                return perform(request)
            made, _ = play(_InRound(self, context, next(numbers)).means(request), perform)
            return made

        return act


@dataclass(frozen=True)
class _InRound:
    """One request for means."""

    by: Asking
    context: RoundContext
    number: int
    unfit: dict[Client, str] = field(default_factory=dict)

    @property
    def scheme(self) -> Scheme:
        made: Scheme = self.by.spec.make()
        return made

    def means(self, request: Ask[Any]) -> Dialogue:
        """Train, sum, and give the fold the means of those groups that have a sum."""
        fold, (key, tree) = request.fold, self.by.trees[request.task]
        if not isinstance(fold, MeansOfGroups) or fold.key != key:
            remedy = f"{request.task!r} is asked for single models, which no sum gives; set it to off"
            raise KinfolkError("secure_sums.scheme", self.by.spec.scheme, remedy)
        got: Stack = yield replace(request, fold=None)
        if not got.clients:
            return fold.of_means({}, {}, {}), {}
        groups, weights = fold.groups_of(got).tolist(), client_weights(got, fold.weights).tolist()
        lists: Lists = {}
        fit = got.tensor(FIT).tolist()
        for client, group, weight, able in zip(got.clients, groups, weights, fit, strict=True):
            if able:
                lists.setdefault(group, {})[client] = weight
            else:
                self._unfit(client, group)
        agreed = yield from self._agreed(lists, tree)
        sums = yield from self._sums(agreed, request.task)
        yield Exchange("sums.end", got.clients)
        used = {c for g in sums for c in agreed[g].members}
        self.by.lost({c: self.unfit.get(c, "") for c in got.clients if c not in used})
        means = {g: to_tree(total, _counted(got, agreed[g].members, tree)) for g, total in sums.items()}
        mass = {g: sum(lists[g][c] for c in agreed[g].members) for g in means}
        return fold.of_means(means, mass, dict(zip(got.clients, groups, strict=True))), {}

    def _agreed(self, lists: Lists, tree: Tree) -> Dialogue:
        """The lists whose members have enough of one another's shares, by group."""
        agreed: dict[int, Context] = {}
        for attempt in range(TRIES):
            made = {g: ctx for g in sorted(lists) if (ctx := self._list(g, lists[g], tree)) is not None}
            if not made:
                break
            who = tuple(sorted(c for ctx in made.values() for c in ctx.members))
            yield Ask("sums.list", who, each=self._told(made))
            yield Exchange("sums.open", who)
            yield Exchange("sums.share", who)
            ready: Stack = yield Ask("sums.ready", who)
            again: Lists = {}
            for g, ctx in made.items():
                out, able = self._judged(ctx, ready, g)
                needs = self.scheme.needs(len(ctx.members))
                if able >= needs:
                    agreed[g] = ctx
                elif needs == len(ctx.members) and attempt + 1 < TRIES:
                    again[g] = {c: w for c, w in lists[g].items() if c not in out}
                else:
                    self._void(g, f"{able} of {len(ctx.members)} members have all shares, {needs} must")
            lists = again
        return agreed

    def _list(self, group: int, members: dict[Client, float], tree: Tree) -> Context | None:
        """The list of a group; None if no honest member would agree to it."""
        if len(members) < self.by.spec.min_members or not sum(members.values()) > 0:
            needed = self.by.spec.min_members
            self._void(group, f"{len(members)} of the {needed} members that are needed")
            return None
        ctx = list_of(self.number, group, members, layers_of(tree))
        try:
            heaviest = max(ctx.members, key=lambda c: members[c])
            check_secrecy(ctx, heaviest, self.scheme.min_members, self.scheme.max_share)
        except KinfolkError as error:
            self._void(group, str(error))
            return None
        return ctx

    def _told(self, made: Mapping[int, Context]) -> IndexedMessages:
        """To each member the list of its group."""
        names, which = self.context.clients, {c: i for i, x in enumerate(made.values()) for c in x.members}
        mask = torch.zeros(len(made), len(names), dtype=torch.bool)
        sigma = torch.zeros(len(made), len(names), dtype=torch.float64)
        place = {c: i for i, c in enumerate(names)}
        for row, ctx in enumerate(made.values()):
            for client, weight in zip(ctx.members, ctx.sigma, strict=True):
                mask[row, place[client]], sigma[row, place[client]] = True, weight
        numbers, groups = torch.full((len(made),), self.number), torch.tensor(list(made))
        table: Message = {"mask": mask, "sigma": sigma, "number": numbers, "group": groups}
        who = tuple(sorted(which))
        return IndexedMessages(who, torch.tensor([which[c] for c in who]), table)

    def _judged(self, ctx: Context, ready: Stack, group: int) -> tuple[set[Client], int]:
        """(who is left out if it is tried again, how many can answer)."""
        here = [c for c in ctx.members if c in ready.clients]
        reports: dict[int, Tensor] = {}
        for client in here:
            said = ready.row(client)
            if int(said["why"]) != FINE:
                self._left_out(client, REASONS[int(said["why"])], group)
            else:
                reports[self.context.clients.index(client)] = said["lost"].cpu()
        places = [self.context.clients.index(c) for c in ctx.members]
        found = find_disputes(reports, places)
        names = self.context.clients
        for place, voices in sorted(found.at_fault.items()):
            if place in reports:
                told = ", ".join(names[i] for i in voices) or "nobody but itself"
                self._left_out(names[place], f"shares missing or bad, says {told}", group)
        for one, other in found.disputes:
            self._left_out(names[one], f"lacks a good share of {names[other]}, says nobody else", group)
        for client in sorted(set(ctx.members) - set(here)):
            self._left_out(client, "silent after training", group)
        return {names[i] for i in found.out}, sum(not bool(report.any()) for report in reports.values())

    def _sums(self, agreed: Mapping[int, Context], task: str) -> Dialogue:
        """The sum of each group whose answers give one."""
        who = tuple(sorted(c for ctx in agreed.values() for c in ctx.members))
        if not who:
            return {}
        yield Exchange("sums.note", who)
        answers: Stack = yield Ask(f"sums.answer.{task}", who)
        sums: dict[int, Tensor] = {}
        for group, ctx in agreed.items():
            n = len(ctx.members)
            heard = {c: answers.row(c) for c in ctx.members if c in answers.clients}
            heard = {c: {**one, "seen": one["seen"][:n]} for c, one in heard.items()}
            told = lambda error, group=group: self.by.log(  # noqa: E731
                "sum_fault", round=self.context.round, group=group, reason=str(error)
            )
            try:
                sums[group] = self.scheme.reconstruct(heard, ctx, told)
            except KinfolkError as error:
                self._void(group, str(error))
        return sums

    def _unfit(self, client: Client, group: int) -> None:
        self.unfit[client] = REASONS[UNFIT]
        self._left_out(client, REASONS[UNFIT], group)

    def _left_out(self, client: Client, reason: str, group: int) -> None:
        self.by.log("left_out", round=self.context.round, group=group, client=client, reason=reason)

    def _void(self, group: int, reason: str) -> None:
        self.by.log("no_sum", round=self.context.round, group=group, reason=f"{reason}; it keeps its model")


def _counted(got: Stack, members: tuple[Client, ...], tree: Tree) -> Tree:
    """The form of a model with the largest of each of its whole numbers among some clients."""
    if COUNTS not in got.body:
        return tree
    most, start, filled = got.at(members).tensor(COUNTS).amax(0).cpu(), 0, dict(tree)
    for name, leaf in tree.items():
        if not leaf.is_floating_point():
            filled[name] = most[start : start + leaf.numel()].reshape(leaf.shape).to(leaf.dtype)
            start += leaf.numel()
    return filled
