"""What makes engines fast: recorded steps, graph passes, CUDA lanes and kept memory."""
