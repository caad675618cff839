"""What runs inside vLLM's own processes: live knobs and a heartbeat. It imports nothing but the standard library."""
