"""What to use for a federation: short trials within a budget, and rules that make advice of them."""
