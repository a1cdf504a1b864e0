"""Differential privacy of clients: what one can change of a release is bounded and hidden in noise."""
