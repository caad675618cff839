"""I/O in: metrics, GPU, log, installed vLLM."""
