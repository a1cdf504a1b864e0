"""Images that clients make, with the options of one test."""

from kinfolk.algorithms.slfed.gan import Gan
from kinfolk.algorithms.slfed.probe_images import ImageOptions, ProbeImages


def probe(learner, kind, count=1000, gan=None, guarded=True, **images):
    options = ImageOptions(kind, count, **{"ranges": "fixed", **images})
    return ProbeImages(learner, options, gan or Gan(), guarded)
