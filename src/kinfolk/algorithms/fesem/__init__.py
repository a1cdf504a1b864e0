"""FeSEM with all its parts: the method, its variant from a common start, and matched averaging."""
