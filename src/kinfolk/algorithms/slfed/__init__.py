"""SLFed with all its parts: the method, subjective-logic trust, probe images and their similarity."""
