"""What an author of an algorithm, an engine, a score, an optimiser or a share scheme needs, in one place."""

from __future__ import annotations

from kinfolk.engines.choose import ENGINES
from kinfolk.engines.loop import Loop
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.fold import Fold, Mean
from kinfolk.learning.learner import Learner
from kinfolk.learning.metrics import RULES, Rule, mean_of
from kinfolk.learning.optim import OPTIMISERS
from kinfolk.scores import SCORES, Score
from kinfolk.script import (
    Algorithm,
    Ask,
    Chooses,
    Exchange,
    Finalizes,
    Groups,
    Remembers,
    Script,
    Stops,
    ask,
    exchange,
    fold,
)
from kinfolk.shares import SCHEMES
from kinfolk.shares.plain import Plain
from kinfolk.shares.scheme import Scheme
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import (
    Batch,
    Carry,
    ClientInfo,
    Fit,
    FloatSpec,
    IntSpec,
    PeerTask,
    Plan,
    Scan,
    Table,
    Task,
    TrainStep,
)
from kinfolk.types import (
    Client,
    IndexedMessages,
    Message,
    PerClient,
    Rows,
    Stack,
    Tree,
    map_rows,
    plain_rows,
    row_count,
    row_leaves,
    tensor_of,
    tree_of,
)

__all__ = [
    "ENGINES",
    "OPTIMISERS",
    "RULES",
    "SCHEMES",
    "SCORES",
    "Algorithm",
    "Ask",
    "Batch",
    "Carry",
    "Chooses",
    "Client",
    "ClientInfo",
    "EngineSpec",
    "Exchange",
    "Finalizes",
    "Fit",
    "FloatSpec",
    "Fold",
    "Groups",
    "IndexedMessages",
    "IntSpec",
    "KinfolkError",
    "Learner",
    "Loop",
    "Mean",
    "Message",
    "PeerTask",
    "PerClient",
    "Plain",
    "Plan",
    "Remembers",
    "RoundContext",
    "Rows",
    "Rule",
    "Scan",
    "Scheme",
    "Score",
    "Script",
    "Seed",
    "Stack",
    "Stops",
    "Table",
    "Task",
    "TrainStep",
    "Tree",
    "ask",
    "exchange",
    "fold",
    "map_rows",
    "mean_of",
    "plain_rows",
    "row_count",
    "row_leaves",
    "tensor_of",
    "tree_of",
]
