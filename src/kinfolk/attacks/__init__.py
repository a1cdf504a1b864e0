"""Attackers in a run: what they send, which rows they train on, and what they say of others."""
