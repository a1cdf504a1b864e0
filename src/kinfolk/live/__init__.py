"""Runs that are going on, for somebody who watches: where each stands, and how that looks on a terminal."""
