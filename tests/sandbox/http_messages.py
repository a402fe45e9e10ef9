"""Header lines for which two parsers may disagree where a message ends: request and response smuggling."""

from __future__ import annotations

AMBIGUOUS = (
    b"Content-Length: 1\r\nContent-Length: 1\r\n",
    b"Content-Length: 1\r\nContent-Length: 2\r\n",
    b"Content-Length: 1\r\ncontent-length : 11\r\n",
    b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
)
