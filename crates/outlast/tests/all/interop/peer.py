"""A peer of Outlast, written from PROTOCOL.md alone, to show that the document says all that a peer needs.

    peer.py client HOST:PORT   opens a session, sends bytes, expects them back, and breaks links on the way
    peer.py server HOST:PORT   takes sessions, sends back what comes, and breaks links on the way

Numbers in comments are rules of PROTOCOL.md.
"""
import argparse, ctypes, fcntl, hmac, os, random, select, socket, struct, sys

HELLO, WELCOME, CHALLENGE, ANSWER, REFUSE = 1, 2, 3, 4, 5
OPEN, RESUME = 1, 2
MODES = {"kernel": 1, "window": 2, "udp": 3, "inband": 4}
SECURITY = {"open": 1, "psk": 2}
END_OFFSET, DIRECT_PROOF, SOURCE_PORT, ACK_PORT, NONCE, PROOF, REASON = range(1, 8)
DATA, ACK, END, END_ACK, PING, PONG, RESET, GOODBYE = range(1, 9)
UNKNOWN_SESSION, ENDED, STALE_EPOCH, OUT_OF_RANGE = 1, 6, 7, 11


class Refused(Exception): pass
class Broken(Exception): pass


def message(kind, fixed, tags=(), key=None, label=b"", parts=()):
    """1.1, 1.2; with a key the proof is the last field, and covers all before it (1.5)."""
    body = fixed + b"".join(struct.pack(">BB", tag, len(value)) + value for tag, value in tags)
    head = struct.pack(">4sBBH", b"\xd7OLS", 1, kind, len(body) + (34 if key else 0))
    if key:
        body += struct.pack(">BB", PROOF, 32) + mac(key, label, *parts, head + body)
    return head + body


def mac(key, *parts):
    """6.1."""
    return hmac.digest(key, b"".join(struct.pack(">Q", len(part)) + part for part in parts), "sha256")


def exactly(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise Broken("the link ended in the handshake")
        data += piece
    return data


def receive(sock, *kinds):
    """A message: its kind, all of it, and its body."""
    head = exactly(sock, 8)
    magic, version, kind, length = struct.unpack(">4sBBH", head)
    assert magic == b"\xd7OLS" and length <= 2048, head
    body = exactly(sock, length)
    if kind == REFUSE:
        raise Refused(*struct.unpack(">BQ", body[:9]))
    assert version == 1 and kind in kinds, head
    return head + body, body


def tags_of(body):
    tags = {}
    while body:
        tag, length = body[0], body[1]
        assert len(body) >= 2 + length and tag not in tags, "1.4"
        tags[tag], body = body[2 : 2 + length], body[2 + length :]
    return tags


def check_proof(key, label, parts, whole, tags):
    assert hmac.compare_digest(tags[PROOF], mac(key, label, *parts, whole[:-34])), "6.4"


class Session:
    def __init__(self, args, is_client, id):
        self.args, self.is_client, self.id, self.key, self.epoch = args, is_client, id, None, 0
        self.out, self.retained, self.sent, self.end = bytearray(), 0, 0, None  # our stream (2.2, 2.5)
        self.next, self.peer_end, self.end_taken = 0, None, False  # the peer's
        self.over = self.was_welcomed = False

    def positions(self):
        end = [] if self.end is None else [(END_OFFSET, struct.pack(">Q", self.end))]
        return struct.pack(">QQQ", self.next, self.retained, self.sent), end

    def agree(self, peer_next, tags):
        """3.6, 3.8: what the peer has counts as delivered; the rest goes to the new link."""
        if not self.retained <= peer_next <= self.sent:
            raise Refused(OUT_OF_RANGE, 0)
        self.delivered(peer_next)
        self.given = peer_next
        if END_OFFSET in tags:
            self.peer_end = struct.unpack(">Q", tags[END_OFFSET])[0]

    def delivered(self, position):
        assert self.retained <= position <= self.sent, "4.4"
        del self.out[: position - self.retained]
        self.retained = position

    # Handshakes ----------------------------------------------------------------------------------------------

    def connect(self, address, security, psk, mode):
        """3.1 to 3.3: a new link. Answers the socket."""
        sock = socket.create_connection(address, 5)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # 2.4
        stamp = sock.getsockopt(socket.IPPROTO_TCP, 24)  # TCP_TIMESTAMP (7.1)
        self.epoch += 1
        intent = RESUME if self.was_welcomed else OPEN
        positions, tags = self.positions()
        fixed = self.id + struct.pack(">QBBBB", self.epoch, intent, MODES[mode], SECURITY[security], 0)
        fixed += positions + self.buffers(sock)
        tags += [(DIRECT_PROOF, struct.pack(">I", stamp & 0xFFFFFFFF))]
        tags += [(SOURCE_PORT, struct.pack(">H", sock.getsockname()[1]))]  # 7.4
        nonce = os.urandom(32)
        if security == "psk":
            tags += [(NONCE, nonce)]
        hello = message(HELLO, fixed, tags, self.key if intent == RESUME else None, b"resume", [b""])
        sock.sendall(hello)
        if security == "psk" and intent == OPEN:  # 6.3
            _, challenge = receive(sock, CHALLENGE)
            ns, proof = challenge[:32], challenge[32:64]
            assert hmac.compare_digest(proof, mac(psk, b"server open", hello, ns)), "the server has another key"
            sock.sendall(message(ANSWER, mac(psk, b"client open", hello, ns)))
            self.key = mac(psk, b"session", self.id, nonce, ns)
        whole, body = receive(sock, WELCOME)
        self.hand_bytes = len(whole) + (72 if security == "psk" and intent == OPEN else 0)
        epoch, self.mode, _, next, _, _, _, _, _ = struct.unpack(">QBBQQQQQQ", body[:58])
        tags = tags_of(body[58:])
        if self.key:
            check_proof(self.key, b"welcome", [b"", nonce], whole, tags)
        assert epoch == self.epoch and self.mode == MODES[mode]
        self.was_welcomed = True
        self.agree(next, tags)
        return sock

    @staticmethod
    def accept(sock, sessions, args, psk):
        """A server's side of a handshake. Answers the session, or refuses (1.7)."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.settimeout(5)
        hello, body = receive(sock, HELLO)
        id = body[:16]
        epoch, intent, mode, security, _, next, _, _, _, _ = struct.unpack(">QBBBBQQQQQ", body[16:68])
        tags = tags_of(body[68:])
        self = sessions.get(id)
        nonce = tags.get(NONCE, b"")
        if intent == RESUME and self and self.key:
            if PROOF not in tags or not hmac.compare_digest(tags[PROOF], mac(self.key, b"resume", b"", hello[:-34])):
                raise Refused(UNKNOWN_SESSION, 0)  # 3.7
        if intent == RESUME and not self:
            raise Refused(UNKNOWN_SESSION, 0)
        if security != SECURITY[args.security]:
            raise Refused(10, SECURITY[args.security])
        if mode not in (1, 4) or mode == 1 and not is_direct(sock, tags):
            raise Refused(4, 0)
        key = None
        if intent == OPEN and psk:
            ns = os.urandom(32)
            sock.sendall(message(CHALLENGE, ns + mac(psk, b"server open", hello, ns)))
            _, answer = receive(sock, ANSWER)
            if not hmac.compare_digest(answer[:32], mac(psk, b"client open", hello, ns)):
                raise Refused(5, 0)
            key = mac(psk, b"session", id, nonce, ns)
        if self and epoch <= self.epoch:
            raise Refused(STALE_EPOCH, self.epoch)  # 3.4
        self = self or sessions.setdefault(id, Session(args, False, id))
        self.key, self.epoch, self.mode = key or self.key, epoch, mode
        self.hand_bytes = len(hello) + (40 if intent == OPEN and psk else 0)
        self.agree(next, tags)
        positions, ends = self.positions()
        fixed = struct.pack(">QBB", epoch, mode, 0) + positions + self.buffers(sock) + struct.pack(">Q", 60_000)
        sock.sendall(message(WELCOME, fixed, ends, self.key, b"welcome", [b"", nonce]))
        return self

    @staticmethod
    def buffers(sock):
        return struct.pack(">QQ", *(sock.getsockopt(socket.SOL_SOCKET, what) for what in (socket.SO_SNDBUF, socket.SO_RCVBUF)))

    # One link ------------------------------------------------------------------------------------------------

    def carry(self, sock, app, break_after):
        """Sends and receives until the session is over, the link fails, or so many bytes have come."""
        sock.setblocking(False)
        self.link, self.app, self.inbox, self.outbox = sock, app, b"", b""
        self.end_given = self.end_acked = self.end_ack_given = self.goodbye = False
        self.told = self.next_before = self.next
        until = self.next + self.retained + break_after
        try:
            while not self.over and self.next + self.retained < until:
                self.prepare()
                wanted = [sock] if self.outbox or self.mode == 1 and self.given < self.sent else []
                readable, writable, _ = select.select([] if self.mode == 1 and self.end_taken else [sock], wanted, [], 0.02)
                if writable:
                    self.write()
                if readable:
                    self.read()
                self.look()
        except OSError as error:
            print("the link failed:", error, file=sys.stderr)
        except Broken as error:
            print("the link broke:", error, file=sys.stderr)
        if self.mode == 1 and not self.over:
            self.freeze()
        if self.over and not self.is_client:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        sock.close()

    def take(self, data):
        self.next += len(data)
        assert self.peer_end is None or self.next <= self.peer_end, "bytes behind the end"
        self.app.bytes_came(self, data)

    def take_end(self):
        if not self.end_taken:
            self.end_taken, self.peer_end = True, self.next
            self.app.end_came(self)

    def freeze(self):
        """3.5 for mode kernel: first freeze, then count, then tell; what was counted stays readable."""
        drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
        program = struct.pack("HxxxxxxP", 1, ctypes.addressof(drop))
        self.link.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
        left = struct.unpack("i", fcntl.ioctl(self.link, 0x541B, b"\0" * 4))[0]  # SIOCINQ
        while left:
            data = self.link.recv(left)
            self.take(data)
            left -= len(data)

    def prepare(self):
        """What the application has said becomes what can be sent."""
        self.app.feed(self)
        self.sent = self.retained + len(self.out)
        if self.mode == 1 or self.outbox:
            return
        if self.given < self.sent:
            piece = bytes(self.out[self.given - self.retained :][:65536])
            self.given += len(piece)
            self.frame(DATA, piece)
        elif self.end is not None and not self.end_given:
            self.end_given = True
            self.frame(END, struct.pack(">Q", self.end))
        elif self.end_taken and not self.end_ack_given:
            self.end_ack_given = True
            self.frame(END_ACK)
        elif self.told < self.next:
            self.frame(ACK)

    def frame(self, kind, content=b""):
        """4.1."""
        self.outbox += struct.pack(">BxxxIQ", kind, len(content), self.next) + content
        self.told = self.next

    def write(self):
        if self.mode == 1:
            self.given += self.link.send(self.out[self.given - self.retained :][:65536])
        else:
            self.outbox = self.outbox[self.link.send(self.outbox) :]

    def read(self):
        data = self.link.recv(65536)
        if self.mode == 1:
            if data:
                return self.take(data)
            info = self.link.getsockopt(socket.IPPROTO_TCP, 11, 136)  # TCP_INFO: tcpi_bytes_received
            if struct.unpack_from("Q", info, 128)[0] != self.hand_bytes + self.next - self.next_before + 1:
                raise Broken("an end without a FIN")  # 2.4
            return self.take_end()
        if not data:
            raise Broken("end of input")
        self.inbox += data
        while len(self.inbox) >= 16:
            kind, length, acked = struct.unpack_from(">BxxxIQ", self.inbox)
            assert DATA <= kind <= GOODBYE and length <= 1 << 20, "4.1"
            if len(self.inbox) < 16 + length:
                break
            content, self.inbox = self.inbox[16 : 16 + length], self.inbox[16 + length :]
            self.delivered(max(acked, self.retained))
            if kind == DATA:
                self.take(content)
            elif kind == END:
                assert struct.unpack(">Q", content)[0] == self.next, "4.6"
                self.take_end()
            elif kind == PING:
                self.frame(PONG, content)
            elif kind == RESET:
                raise SystemExit("reset: " + content.decode())
            self.end_acked |= kind in (END_ACK, GOODBYE)
            self.goodbye |= kind == GOODBYE

    def look(self):
        """2.6: is the session over? And what has the peer taken?"""
        if self.mode == 1:
            held = struct.unpack("i", fcntl.ioctl(self.link, 0x5411, b"\0" * 4))[0]  # SIOCOUTQ
            self.delivered(max(self.retained, self.given - max(0, held - self.end_given)))
            if self.end is not None and self.given == self.end and not self.end_given:
                self.end_given = True
                self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
                self.link.shutdown(socket.SHUT_WR)  # 2.4
            elif self.end_given:
                self.over = self.end_taken and held == 0
        elif self.is_client:
            self.over = self.goodbye
        elif self.end_acked and self.end_taken:  # 4.8
            self.frame(GOODBYE)
            self.link.setblocking(True)
            self.link.sendall(self.outbox)
            self.over = True


def is_direct(sock, tags):
    """7.1, 7.2, 7.4: the client's timestamp beside the one in its SYN."""
    syn = sock.getsockopt(socket.IPPROTO_TCP, 28, 256)  # TCP_SAVED_SYN
    tcp = syn[(syn[0] & 15) * 4 :]
    if syn[12:16] == syn[16:20] and tags.get(SOURCE_PORT) != tcp[:2]:  # 7.4
        return False
    options = tcp[20 : (tcp[12] >> 4) * 4]
    while options and options[0] != 8:
        options = options[1 if options[0] == 1 else options[1] :]
    if not options or DIRECT_PROOF not in tags:
        return False
    return (struct.unpack(">I", tags[DIRECT_PROOF])[0] - struct.unpack_from(">I", options, 2)[0] + 1) % 2**32 <= 1001


class Upload:
    """The client's application: sends bytes, expects them back, ends, and expects the end."""

    def __init__(self, total, seed):
        self.random, self.total, self.made, self.expected = random.Random(seed), total, 0, bytearray()

    def feed(self, session):
        while self.made < self.total and len(session.out) < 1 << 18:
            piece = self.random.randbytes(min(10_000, self.total - self.made))
            self.made += len(piece)
            self.expected += piece
            session.out += piece
        if self.made == self.total:
            session.end = self.total

    def bytes_came(self, session, data):
        assert data == self.expected[: len(data)], f"other bytes than were sent, before {session.next}"
        del self.expected[: len(data)]

    def end_came(self, session):
        assert self.made == self.total and not self.expected, "the end came too early"


class Echo:
    """The server's application."""

    def feed(self, session): pass

    def bytes_came(self, session, data):
        session.out += data

    def end_came(self, session):
        session.end = session.retained + len(session.out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["client", "server"])
    parser.add_argument("address")
    parser.add_argument("--mode", default="inband", choices=["kernel", "inband"])
    parser.add_argument("--psk", help="the key itself, in hexadecimal")
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--breaks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    host, port = args.address.rsplit(":", 1)
    psk = bytes.fromhex(args.psk) if args.psk else None
    args.security = "psk" if psk else "open"
    dice, breaks = random.Random(args.seed), args.breaks
    if args.role == "client":
        session, app = Session(args, True, os.urandom(16)), Upload(args.bytes, args.seed)
        while not session.over:
            try:
                sock = session.connect((host, int(port)), args.security, psk, args.mode)
            except Refused as refused:
                if not session.was_welcomed or refused.args != (ENDED, session.end):
                    raise
                session.take_end()  # 1.7: that is all of it
                break
            far = dice.randrange(1, 2 * args.bytes // (args.breaks + 1) + 2) if breaks else 1 << 62
            breaks = max(0, breaks - 1)
            session.carry(sock, app, far)
        print("done:", session.next, "bytes,", session.epoch, "links")
        return
    listener = socket.create_server((host, int(port)))
    listener.setsockopt(socket.IPPROTO_TCP, 27, 1)  # TCP_SAVE_SYN
    print("listening on", listener.getsockname()[1], flush=True)
    sessions = {}
    while not (sessions and all(session.over for session in sessions.values())):
        sock = listener.accept()[0]
        try:
            session = Session.accept(sock, sessions, args, psk)
        except Refused as refused:
            print("refused:", refused.args, file=sys.stderr)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            sock.sendall(message(REFUSE, struct.pack(">BQ", *refused.args)))
            sock.close()
            continue
        far = dice.randrange(1, 2 * args.bytes // (args.breaks + 1) + 2) if breaks else 1 << 62
        breaks = max(0, breaks - 1)
        session.carry(sock, Echo(), far)
    for session in sessions.values():
        print("done:", session.next, "bytes,", session.epoch, "links")


main()
