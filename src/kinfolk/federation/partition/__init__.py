"""How rows are split among clients: partitions, held-out rows, the rows each client is tested on."""
