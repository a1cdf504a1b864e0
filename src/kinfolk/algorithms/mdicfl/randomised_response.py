"""Strong privacy: a client chooses its cluster itself, and may answer at random.

Randomised response: the choice with probability e^eps / (e^eps + K - 1), else one of the others. Its coins
come from a secret of the client's own.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.label_counts import label_scan, no_labels
from kinfolk.algorithms.mdicfl.client_facts import SLACK, distribution
from kinfolk.algorithms.mdicfl.output_distance import FARTHEST, nearest_cluster
from kinfolk.task import Carry, ClientInfo, FloatSpec, IntSpec, Peer, PeerTask, Task
from kinfolk.types import Message

# A coin that was never thrown, or is used up: whoever holds it gives no answer.
SPENT = -1.0
# Bytes of the secret that a client's coins are made of.
SECRET = 32


def choose_task(classes: int, k: int, batch: int, epsilon: float) -> Task:
    """A task: s_i = argmin_k p_i . d_ik, by the client's own labels; with an epsilon, randomised.

    A client does not answer distances that are none: what is outside [0, 2], or is no number, or speaks of
    other clusters or classes.
    """
    none = no_labels(classes)

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        coin = memory if epsilon else {}
        return {**none(message, memory, facts), "distances": message["distances"], **coin}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        choice = nearest_cluster(carry["distances"], distribution(carry))
        if not epsilon:
            return {"choice": choice}, None
        answer = respond(choice, carry["coin"], epsilon, k)
        spent = {"coin": torch.full_like(carry["coin"], SPENT)}
        return {"choice": answer}, {**{n: carry[n] for n in ("secret", "thrown")}, **spent}

    sent = {"distances": FloatSpec((k, classes), 0, FARTHEST + SLACK)}
    return Task(start, finish, (label_scan(batch),), {"choice": IntSpec(0, k)}, sent=sent)


def respond(choice: Tensor, coin: Tensor, epsilon: float, k: int) -> Tensor:
    """Randomised response: the choice with probability e^eps / (e^eps + K - 1), else any other, evenly.

    `coin` is two numbers in [0, 1); one that is spent gives -1, which the guard rejects.

    >>> respond(torch.tensor(2), torch.tensor([0.99, 0.1]), 0.5, 4), respond(
    ...     torch.tensor(2), torch.tensor([0.1, 0.1]), 0.5, 4)
    (tensor(0), tensor(2))
    """
    truly = 1 / (1 + (k - 1) * math.exp(-epsilon))
    other = (coin[1] * (k - 1)).long().clamp(max=max(k - 2, 0))
    other = other + (other >= choice).long()
    answer = torch.where(coin[0] < truly, choice, other)
    return torch.where(coin[0] == SPENT, torch.full_like(answer, -1), answer)


def coin_tasks() -> dict[str, PeerTask]:
    """Tasks that send nothing: draw a secret, throw the coin of the round."""
    return {
        "secret": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: with_secret(memory)),
        "coin": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: throw(memory, me)),
    }


def no_coin() -> Message:
    """What a client that randomises its answers holds at first: neither a secret nor a coin."""
    secret = torch.zeros(SECRET, dtype=torch.uint8)
    return {"secret": secret, "coin": torch.full((2,), SPENT), "thrown": torch.tensor(-1)}


def with_secret(memory: Message) -> Message:
    """The memory with a secret, from the operating system, which nobody who knows the run's seed can tell."""
    if bool(memory["secret"].any()):
        return memory
    drawn = torch.tensor(list(secrets.token_bytes(SECRET)), dtype=torch.uint8)
    return {**memory, "secret": drawn.to(memory["secret"].device)}


def throw(memory: Message, me: Peer) -> Message:
    """The memory with the coin of this round: two numbers in [0, 1) out of the client's secret and the round.

    The same round gives the same coin: who is asked the same again, as after a run was killed and resumed,
    answers the same, since answers by several coins could be averaged. A coin serves for one answer: asked
    about something else in the same round, a client has none.
    """
    if int(memory["thrown"]) >= me.context.round:
        return {**memory, "coin": torch.full_like(memory["coin"], SPENT)}
    memory = with_secret(memory)
    key, told = bytes(memory["secret"].tolist()), f"coin {me.context.round}".encode()
    drawn = hashlib.blake2b(told, key=key, digest_size=6).digest()
    # 24 bits each, as many as float32 holds exactly.
    words = [int.from_bytes(drawn[i : i + 3], "big") / 2**24 for i in (0, 3)]
    coin = torch.tensor(words).to(memory["coin"])
    return {**memory, "coin": coin, "thrown": torch.full_like(memory["thrown"], me.context.round)}
