"""Learners as experiments have them: their networks prepared to be fast for many clients."""

from functools import partial

from kinfolk.engines.fast import prepare
from kinfolk.learning import learner

Learner = partial(learner.Learner, prepare=prepare)
