"""Answers lines with lines in two processes that it forks. How those wait is its first argument, its port the second."""
import errno
import os
import selectors
import socket
import sys

how, port = sys.argv[1:3]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(port)))
listener.listen(100)


def answer(line):
    if line == b"fill":
        try:
            while True:
                os.dup(0)
        except OSError as error:
            line = errno.errorcode[error.errno].encode()
    return b"%d\n" % os.getpid() if line == b"pid" else line.upper() + b"\n"


def one_after_the_other():
    while True:
        client, _ = listener.accept()
        data = b""
        while chunk := client.recv(4096):
            data += chunk
            while b"\n" in data:
                line, data = data.split(b"\n", 1)
                client.sendall(answer(line))
        client.close()


def together():
    selector = selectors.DefaultSelector()
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            try:
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    selector.register(client, selectors.EVENT_READ)
                    continue
                chunk = key.fileobj.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionError:
                chunk = b""
            if not chunk:
                selector.unregister(key.fileobj)
                key.fileobj.close()
            for line in chunk.splitlines():
                key.fileobj.sendall(answer(line))


def fork():
    if os.fork() == 0:
        (together if how == "together" else one_after_the_other)()


fork()
fork()
while True:
    os.wait()
    fork()
