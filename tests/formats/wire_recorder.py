"""Run a command in a network namespace without a network and record every control message on its loopback interface.

    python wire_recorder.py OUTPUT COMMAND...

OUTPUT gets one JSON line per message: {"from": "leader" or "agent", "message": {...}}. Connections that do not begin
with the handshake of the control channel are left out. Needs root.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict

ETH_P_ALL, SO_RCVBUFFORCE = 3, 33
RECEIVE_BUFFER_BYTES = 256 << 20  # a recorder that is scheduled late must not lose packets
IDLE_S = 0.2  # the command has ended and nothing more was captured for this long: everything was seen


def record(capture: socket.socket, over: threading.Event, streams: dict[bytes, dict[int, bytes]]) -> None:
    """Keep the payload of every IPv4 TCP packet by connection, direction and sequence number until all is over.

    A packet on the loopback interface is captured twice, on its way out and on its way in.
    """
    capture.settimeout(IDLE_S)
    while True:
        try:
            packet = capture.recv(1 << 18)[14:]
        except TimeoutError:
            if over.is_set():
                return
            continue
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            continue
        ip = (packet[0] & 15) * 4
        (length,) = struct.unpack_from("!H", packet, 2)
        (sequence,) = struct.unpack_from("!I", packet, ip + 4)
        payload = packet[ip + (packet[ip + 12] >> 4) * 4 : length or None]
        if payload:
            streams[packet[12:20] + packet[ip : ip + 4]][sequence] = payload


def messages(stream: dict[int, bytes]) -> list[tuple[str, dict[str, object]]]:
    """Return the messages of one direction of a control connection after the handshake; none of another connection."""
    start = min(stream)
    text = b"".join(payload for _, payload in sorted(stream.items(), key=lambda item: (item[0] - start) % 2**32))
    lines = text.split(b"\n")
    try:
        greeting = json.loads(lines[0])
    except ValueError:
        return []
    if not isinstance(greeting, dict) or "nonce" not in greeting:
        return []
    sender = "agent" if "proof" in greeting else "leader"
    parsed = [json.loads(line) for line in lines if line]
    return [(sender, {**message, "type": message.get("type", "handshake")}) for message in parsed]


def main() -> int:
    output, *command = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    streams: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    capture.bind(("lo", 0))
    over = threading.Event()
    recorder = threading.Thread(target=record, args=(capture, over, streams))
    recorder.start()
    try:
        code = subprocess.run(command).returncode
    finally:
        over.set()
        recorder.join()
    with open(output, "w", encoding="utf-8") as file:
        for stream in streams.values():
            for sender, message in messages(stream):
                file.write(json.dumps({"from": sender, "message": message}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
