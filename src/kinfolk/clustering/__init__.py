"""Clustering and how well a clustering agrees with known groups."""
