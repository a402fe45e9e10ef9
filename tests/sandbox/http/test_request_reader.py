"""Requests from the bytes of one connection; test_fuzz.py tries random ones."""

from __future__ import annotations

from muster.sandbox.http.codec import RequestHead
from muster.sandbox.http.request_reader import RequestReader


def test_requests_are_returned_one_after_the_other_as_their_bytes_arrive() -> None:
    reader = RequestReader(lambda head: True)
    data = b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nabGET /b HTTP/1.0\r\n\r\nrest"
    found = []
    for byte in data:
        reader.feed(bytes([byte]))
        while (request := reader.next()) is not None:
            found.append((request.path, request.body, reader.is_last))
    assert found == [("/a", b"ab", False), ("/b", b"", True)] and reader.buffered == 4
    reader.clear()
    assert reader.buffered == 0


def test_nothing_of_the_body_is_kept_before_its_head_was_admitted() -> None:
    seen: list[RequestHead] = []

    def refuse(head: RequestHead) -> bool:
        seen.append(head)
        return False

    reader = RequestReader(refuse)
    reader.feed(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert reader.next() is None and reader.head is None and [head.path for head in seen] == ["/a"]
