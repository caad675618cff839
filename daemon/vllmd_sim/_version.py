"""The version of vLLM that is simulated unless the host says otherwise."""

__version__ = "0.26.0"
