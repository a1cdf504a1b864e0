"""What several algorithms are made of: states, starts, assignments and aggregation."""
