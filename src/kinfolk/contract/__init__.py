"""The contract every algorithm keeps, as checks that run on anybody's algorithm."""
