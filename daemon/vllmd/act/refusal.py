"""The answer to connections that waited for too long: 503, when to come again, and an error as OpenAI's API has it."""

import asyncio
import json
import socket
from contextlib import suppress

AT_ONCE = 256  # connections that are answered: each needs a descriptor, of which 1024 are usual
RETRY_AFTER_S = 10  # a start takes longer, and the next answer costs nothing
_READ_S = 2.0  # a held request lies in the socket; one that is slower gets its answer all the same
_GOODBYE_S = 2.0  # for the client to close: unread bytes would make ours a reset, and the answer be lost
_LIMIT_BYTES = 64 * 1024  # of a request that is read at once

_MESSAGE = "The server is being restarted, which takes longer than expected. Please try again."
_BODY = json.dumps(
    {"error": {"message": _MESSAGE, "type": "ServiceUnavailableError", "param": None, "code": 503}}
).encode()
ANSWER = (
    "HTTP/1.1 503 Service Unavailable\r\n"
    f"Retry-After: {RETRY_AFTER_S}\r\n"
    "Content-Type: application/json\r\n"
    f"Content-Length: {len(_BODY)}\r\n"
    "Connection: close\r\n\r\n"
).encode() + _BODY


async def refuse(connection: socket.socket) -> None:
    """Answer one connection, whatever it asks, and close it."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                await reader.read(_LIMIT_BYTES)
        writer.write(ANSWER)
        writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while await reader.read(_LIMIT_BYTES):
                    pass
    except OSError:
        pass  # the client is gone
    finally:
        writer.close()


async def hang_up(connection: socket.socket) -> None:
    """End one connection without a word: under TLS nothing that we could say would be understood."""
    connection.close()
