"""Federations without files: synthetic tasks, and rows that are made when a client is asked."""
