"""A server of asyncio, which writes an answer in two parts, with a pause between them if it is asked to."""
import asyncio
import os
import sys


async def serve(reader, writer):
    while line := await reader.readline():
        if line == b"slow\n":
            writer.write(b"first\n")
            await asyncio.sleep(0.2)
            writer.write(b"second\n")
        else:
            writer.write(b"%d\n" % os.getpid())
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[2]))
    await server.serve_forever()


asyncio.run(main())
