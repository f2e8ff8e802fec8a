"""Descriptors that outlive the process: given to `outlast hold`, and back after a crash.

    keeper = Keeper("echo")                        # at $OUTLAST_HOLDER
    for name, (fd, state) in keeper.recover().items(): ...
    keeper.keep("client 7", connection, b"state")  # also to change the state
    keeper.release("client 7")                     # before or after close()

When the holder dies, every call goes on without it, and gives everything to the next one as soon as that is there. A
descriptor is to be released when it is closed for good, or its client is never told of the end.
"""

import contextlib
import os
import socket
import struct

HELLO, KEEP, UPDATE, RELEASE, RECOVER, KEPT, REFUSED = 1, 2, 3, 4, 5, 67, 69
HEADER = struct.Struct(">2sBBIHH")  # "OH", version, kind, number, bytes of the name, bytes of the state
SUPERSEDED = 7


class Refused(Exception):
    """The holder does not want to: its code, and why. After SUPERSEDED another process of the service has everything."""


class Keeper:
    def __init__(self, service, path=None):
        self.service, self.path = service, path or os.environ["OUTLAST_HOLDER"]
        self.socket, self.kept, self.dismissed = None, {}, None  # kept: name -> (descriptor or socket, state)

    def recover(self):
        """Everything that is held, as {name: (descriptor, state)}. It stays held; the descriptors are the caller's."""
        self._connect()
        self.kept = {name: (fds[0], state) for name, state, fds in self._ask(RECOVER)}
        return dict(self.kept)

    def keep(self, name, descriptor, state=b""):
        """Has it held with this state, or changes the state. False: there is no holder now."""
        known = name in self.kept and self.kept[name][0] is descriptor
        self.kept[name] = (descriptor, state)
        return self._tell(UPDATE if known else KEEP, name, state, [] if known else [descriptor])

    def release(self, name):
        """Has it held no longer. False: there is no holder now."""
        self.kept.pop(name, None)
        return self._tell(RELEASE, name)

    def _tell(self, *message):
        for _ in range(2):  # where the holder has died, there may be the next one
            try:
                if not self.socket:
                    self._connect()
                    for name, (descriptor, state) in list(self.kept.items()):
                        with contextlib.suppress(Refused):  # for its limits: the others may fit
                            self._ask(KEEP, name, state, [descriptor])
                self._ask(*message)
                return True
            except OSError:
                self.socket = None
        return False

    def _connect(self):
        if self.dismissed:
            raise self.dismissed
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(5)
        self.socket.connect(self.path)
        self._ask(HELLO, self.service)

    def _ask(self, kind, name="", state=b"", descriptors=()):
        header = HEADER.pack(b"OH", 1, kind, 0, len(name.encode()), len(state))
        fds = [fd if isinstance(fd, int) else fd.fileno() for fd in descriptors]
        with contextlib.suppress(BrokenPipeError):  # why is what can be received
            socket.send_fds(self.socket, [header, name.encode(), state], fds)
        given = []
        while True:
            packet, fds, _, _ = socket.recv_fds(self.socket, 8192, 1)
            if not packet:
                raise ConnectionError("the holder has gone")
            _, _, kind, number, name_bytes, _ = HEADER.unpack_from(packet)
            name, state = packet[HEADER.size :][:name_bytes].decode(), packet[HEADER.size + name_bytes :]
            if kind == REFUSED:
                refused = Refused(number, state.decode(errors="replace"))
                self.dismissed = refused if number == SUPERSEDED else None
                raise refused
            if kind != KEPT:
                return given
            given.append((name, state, fds))
