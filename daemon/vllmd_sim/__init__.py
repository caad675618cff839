"""A simulated `vllm serve`: vllmd's embedded default and test bench. All that it prints is simulated. See README.md."""
