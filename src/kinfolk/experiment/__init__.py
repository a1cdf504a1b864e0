"""Experiments: one TOML file in, one run folder out."""
