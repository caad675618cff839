"""vllmd: an adaptive launcher daemon for vLLM. Start reading at `vllmd.loop`."""

__version__ = "0.1.0"
