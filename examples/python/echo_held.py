#!/usr/bin/env python3
"""A server that may be killed at any instant: each line is answered with its number on this connection, exactly once.

    outlast hold /tmp/holder &
    OUTLAST_HOLDER=/tmp/holder outlast run -- python3 examples/python/echo_held.py 7000
    nc localhost 7000, and meanwhile: kill -9 the server

A line is only looked at until its answer is decided. What is to happen then is held with the connection: so many bytes read
and written when it is done, and the answer. The next process compares this with what the kernel has counted, and does what
is missing.
"""

import fcntl
import os
import pathlib
import selectors
import socket
import struct
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"))
from outlast_hold import Keeper, Refused

PLAN = struct.Struct(">IQQ")  # lines answered, bytes read and bytes written when the last one is done; then its answer
LINE_MAX = 4000
PEER_HAS_ENDED = (6, 8, 9, 11)  # TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING


def positions(connection):
    """Bytes that this side has read and written, whoever did so: what the kernel has counted, less what waits in it."""

    def counted():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        return struct.unpack_from("=QQ", info, 120), info[0]  # acknowledged and received; the state

    def queued(what):
        return struct.unpack("i", fcntl.ioctl(connection, what, bytes(4)))[0]

    while True:  # an acknowledgement may arrive in between
        before = counted()
        unread, unacknowledged = queued(termios.FIONREAD), queued(termios.TIOCOUTQ)
        (acknowledged, received), state = counted()
        if before == ((acknowledged, received), state):
            return received - unread - (state in PEER_HAS_ENDED), acknowledged + unacknowledged


class Client:
    def __init__(self, keeper, name, connection, plan=PLAN.pack(0, 0, 0)):
        self.keeper, self.name, self.connection = keeper, name, connection
        self.lines, self.read, self.written = PLAN.unpack_from(plan)
        self.begun = 0  # bytes of a line that was not whole when it was looked at
        self.carry_out(plan[PLAN.size :])

    def carry_out(self, answer):
        """What was planned, as far as it has not happened."""
        read, written = positions(self.connection)
        if read < self.read:
            self.connection.recv(self.read - read, socket.MSG_WAITALL)
        if written < self.written:
            self.connection.sendall(answer[written - self.written :])

    def on_readable(self):
        """Answers one line. False: it is over."""
        line, newline, _ = self.connection.recv(LINE_MAX, socket.MSG_PEEK).partition(b"\n")
        # What is left in the kernel is told again and again, unless more is asked for: then only when it has grown.
        begun, self.begun = self.begun, 0 if newline else len(line)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self.begun + 1)
        if not newline:
            return begun < self.begun < LINE_MAX  # if it has not, this was the end
        answer = b"%d %s\n" % (self.lines + 1, line)
        self.lines, self.read, self.written = self.lines + 1, self.read + len(line) + 1, self.written + len(answer)
        plan = PLAN.pack(self.lines, self.read, self.written)
        self.keeper.keep(self.name, self.connection, plan + answer)
        # What is unread when all processes are gone would make a reset of the end.
        self.connection.recv(len(line) + 1, socket.MSG_WAITALL)
        self.connection.sendall(answer)
        return True

    def close(self):
        self.keeper.release(self.name)
        self.connection.close()


def main():
    keeper, selector = Keeper("echo"), selectors.DefaultSelector()
    held = {name: (socket.socket(fileno=fd), state) for name, (fd, state) in keeper.recover().items()}
    listener, _ = held.pop("listener", (None, None))
    if not listener:
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
        keeper.keep("listener", listener)
    selector.register(listener, selectors.EVENT_READ)
    for name, (connection, plan) in held.items():
        selector.register(connection, selectors.EVENT_READ, Client(keeper, name, connection, plan))
    print("process %d has %d connections on port %d" % (os.getpid(), len(held), listener.getsockname()[1]), flush=True)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                connection, (host, port) = listener.accept()
                client = Client(keeper, "%s %d" % (host, port), connection)
                try:
                    keeper.keep(client.name, connection, PLAN.pack(0, 0, 0))
                    selector.register(connection, selectors.EVENT_READ, client)
                except Refused as why:
                    print("not served:", why, file=sys.stderr)
                    connection.close()
                continue
            try:
                goes_on = key.data.on_readable()
            except (OSError, Refused):  # it was reset
                goes_on = False
            if keeper.dismissed:
                sys.exit("another process serves now")
            if not goes_on:
                selector.unregister(key.fileobj)
                key.data.close()


if __name__ == "__main__":
    main()
