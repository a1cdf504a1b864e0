"""What can be inferred about rows from models and updates: who was trained on, and what rows look like."""
