"""Learning on one client: networks, losses, optimisers, row plans and scores."""
