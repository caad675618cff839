"""The address that the metrics listen on, as [listen] metrics has it. Pure."""

from vllmd.errors import VllmdError


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", "[IPV6]:PORT" or ":PORT" (every address); VllmdError for anything else."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):  # noqa: PLR2004 - 16 bits
        raise VllmdError(f"[listen] metrics is {address!r}: write HOST:PORT, an IPv6 address in brackets")
    return bare, int(port)
