"""What MD-ICFL shows of a round: confidences against NumPy, and images that are the first of each class."""

from __future__ import annotations

import numpy as np
import torch
from mdicfl_options import DRAWN, FEW, mdicfl
from turned import turned

from kinfolk.algorithms.mdicfl.shown import MOST_BYTES, first_images
from kinfolk.contract import toy
from kinfolk.script import MADE, Shows, play
from kinfolk.streams import RoundContext, Seed


def test_it_shows_how_sure_every_model_is_of_the_rows_it_has_made_in_the_round():
    federation, _ = turned(3)
    method = mdicfl(toy.learner("mlp", federation), k=3, **DRAWN, **FEW)
    state = method.init(method.learner.first, federation.clients, Seed(0))
    with toy.coordinated(method, federation) as coordinator:
        for number in range(2):
            context = RoundContext(Seed(0), number, federation.clients)
            script = method.round(state, federation.clients, context)
            state, info = play(script, lambda request, at=context: coordinator.perform(request, at))
    assert isinstance(method, Shows)
    made = info[MADE]
    models, probe = made
    shown = method.shows(state, {}, made, context)
    classes, samples = method.learner.outputs, method.pseudo.samples
    assert shown["confidence"].shape == (3, 3, classes)
    for j in range(3):
        own = {name: t[j] for name, t in models.items()}
        for k in range(3):
            with torch.no_grad():
                out = method.learner.apply(own, probe.x[k]).double().numpy()
            sure = np.exp(out) / np.exp(out).sum(1, keepdims=True)
            for c in range(classes):
                mean = sure[c * samples : (c + 1) * samples, c].mean()
                np.testing.assert_allclose(shown["confidence"][j, k, c], mean, rtol=1e-4, atol=1e-6)
    first = probe.x.reshape(3, classes, samples, *probe.x.shape[2:])[:, :, 0, 0].numpy()
    low, high = np.quantile(first, (0.02, 0.98))
    grey = np.clip((first - low) / (high - low), 0, 1) * 255
    assert shown["images"].dtype == torch.uint8
    np.testing.assert_allclose(shown["images"].numpy(), grey, atol=0.51)
    assert method.shows(state, {}, None, context) == {}, "a round may have made nothing"


def test_of_very_many_classes_some_are_shown():
    x = torch.zeros(4, 400, 3, 64, 64)
    images = first_images(x, 400)
    assert images.shape[2:] == (32, 32, 3)
    assert MOST_BYTES / 2 < images.numel() <= MOST_BYTES


def test_rows_that_are_spoilt_are_shown_as_black():
    x = torch.full((1, 2, 1, 2, 2), torch.nan)
    assert not first_images(x, 2).any()
