"""The same experiment between organisations: a lead plays the script, sites keep their rows and memories.

A deployment engine (NVFlare, Flower) only carries bytes: see `carrier`. What they say, who may say it and
what happens when somebody is gone is in this folder, and is the same whatever carries it.
"""
