"""Subjective logic: what a peer thinks of another, on how much evidence, and whom it asks for help."""
