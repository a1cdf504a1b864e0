"""Kinfolk: federated learning among clients who are not alike."""
