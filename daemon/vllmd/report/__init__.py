"""What vllmd tells: status, metrics, history, log."""
