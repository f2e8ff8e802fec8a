"""Python's own HTTP server with connections that are kept; `threads` gives each of them one."""
import http.server
import os
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"%d" % os.getpid()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


kind = http.server.ThreadingHTTPServer if sys.argv[1] == "threads" else http.server.HTTPServer
kind(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
