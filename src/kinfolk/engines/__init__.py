"""Engines: what performs a script's requests."""
