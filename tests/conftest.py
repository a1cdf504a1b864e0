"""How tests run: one thread, since small networks only lose by two, and no deadlines on a busy machine."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
