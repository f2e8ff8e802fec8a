"""Answers lines with lines. How it waits is its first argument, where it listens its second: a port, or a path."""
import errno
import os
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time

how, where = sys.argv[1:3]
KINDS = {"select": selectors.SelectSelector, "poll": selectors.PollSelector, "epoll": selectors.EpollSelector}

if where.isdigit():
    listener = socket.socket(socket.AF_INET6 if how == "epoll" else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::" if how == "epoll" else "127.0.0.1", int(where)))
else:
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(where):
        os.unlink(where)
    listener.bind(where)


def answer(line):
    if line == b"pid":
        return b"%d" % os.getpid()
    if line == b"abort":
        os.abort()
    if line == b"exit":
        sys.stdout.flush()
        os._exit(0)
    if line == b"fail":
        os._exit(3)
    if line == b"hang":
        while True:
            pass
    if line == b"child":
        # As for a CGI program: descriptors closed one by one, another program, its output.
        return subprocess.run(["/bin/sh", "-c", "echo $PPID; ls /proc/self/fd | wc -l"], capture_output=True,
                              close_fds=True).stdout.replace(b"\n", b" ")
    if line == b"fill":
        try:
            while True:
                os.dup(0)
        except OSError as error:
            return errno.errorcode[error.errno].encode()
    if line == b"limit":
        return b"%d" % resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if line == b"descriptors":
        return b"%d" % len(os.listdir("/proc/self/fd"))
    return line.upper()


def serve(client, data):
    """What is not answered of it."""
    while b"\n" in data:
        line, data = data.split(b"\n", 1)
        if line == b"work":
            continue
        client.sendall(answer(line) + b"\n")
    return data


def thread(client):
    data = b""
    while chunk := client.recv(4096):
        data = serve(client, data + chunk)
    client.close()


listener.listen(100)
if how == "threads":
    while True:
        threading.Thread(target=thread, args=(listener.accept()[0],), daemon=True).start()

if "LINES_THREAD" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
selector = KINDS[how]()
listener.setblocking(False)
selector.register(listener, selectors.EVENT_READ)
left = {}
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError:
                # There is no descriptor left.
                time.sleep(0.01)
                continue
            client.setblocking(True)
            selector.register(client, selectors.EVENT_READ)
            left[client] = b""
            continue
        client = key.fileobj
        try:
            chunk = client.recv(4096)
        except ConnectionError:
            chunk = b""
        if chunk:
            left[client] = serve(client, left[client] + chunk)
        else:
            selector.unregister(client)
            del left[client]
            client.close()
