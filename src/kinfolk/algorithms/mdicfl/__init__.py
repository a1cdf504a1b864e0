"""MD-ICFL with all its parts: the method, its two samplers of pseudo rows and the distance of models."""
