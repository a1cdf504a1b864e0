"""Clients and their rows: the federation, sources of data, partitions and known groups."""
