"""MD-ICFL by the dotted names of its options, and options that many tests share."""

from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.options import option_values, with_options

FEW = {"pseudo.samples": 6, "search.iterations": 20}
DISTINCT, DRAWN = {"start.name": "distinct_models"}, {"start.name": "random_partition"}
WARM = {"start.name": "warm_kmeans", "start.on": "models"}


def mdicfl(learner, **options):
    """The method with these options: `mdicfl(learner, k=2, **{"pseudo.samples": 6})`."""
    return with_options(MDICFL, learner, options)


def changed(method, **options):
    """The same method with some options changed."""
    return with_options(MDICFL, method.learner, {**option_values(method), **options})
