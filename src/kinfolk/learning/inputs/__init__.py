"""Networks used on the server, where inputs are what changes: many models at once, no clients.

`probabilities` asks many models about the same rows, `descend_rows` moves rows down a cost, `minimise` trains
anything else whose loss goes through models (`costs_of`). How they use cores, CUDA graphs and memory layouts
is their own affair.
"""

from kinfolk.learning.inputs.minimise import minimise
from kinfolk.learning.inputs.models import RowCost, costs_of, descend_rows, probabilities

__all__ = ["RowCost", "costs_of", "descend_rows", "minimise", "probabilities"]
