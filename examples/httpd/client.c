/* A connection: requests one after the other, each read whole, answered whole, and then done. */
#define _GNU_SOURCE
#include "httpd.h"
#include "outlast_or_not.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* One client gets so much at a time, before it is the turn of the next. */
enum { STEPS = 16, PIECE = 256 << 10 };

static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

struct client *client_new(int fd)
{
    struct client *client = calloc(1, sizeof *client);
    if (!client) {
        outlast_close(fd);
        return NULL;
    }
    client->fd = fd;
    client->body = client->spool = client->cgi_pidfd = -1;
    client->active = now();
    /* If an earlier generation has begun an answer, this one goes on with that. */
    outlast_get_note(fd, &client->note, sizeof client->note);
    client->head_sent = client->note.sent;
    if (client->note.body > 0)
        client->body = outlast_keep(client->note.body - 1);
    if (client->note.closing) {
        client->phase = DRAINING;
        outlast_shutdown(fd, SHUT_WR);
    }
    watch(client, fd, EPOLLIN, true);
    return client;
}

void client_free(struct client *client)
{
    cgi_kill(client);
    unwatch(client->fd);
    outlast_close(client->fd);
    if (client->body >= 0)
        close(client->body);
    free(client);
}

/* Has the next generation find the note from here on, with the request still to be answered. */
void client_note(struct client *client)
{
    client->note.sent = (uint32_t)client->head_sent;
    outlast_set_note(client->fd, &client->note, sizeof client->note);
    outlast_done(client->fd, 0);
}

/* Fowler, Noll, Vo: enough to see whether two heads are the same. */
static uint64_t fingerprint(const char *bytes, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3;
    return hash | 1;
}

/* Before its first byte is sent. False: it is not the one that an earlier generation began. */
static bool begin_answer(struct client *client)
{
    uint64_t answer = fingerprint(client->head, client->head_length);
    if (client->note.answer != 0)
        return client->note.answer == answer;
    client->note.answer = answer;
    client->note.body = client->body + 1;
    client_note(client);
    return true;
}

/* 1: all is written; 0: there is no room for more now; -1: the connection is lost. */
static int write_answer(struct client *client)
{
    while (client->head_sent < client->head_length) {
        size_t rest = client->head_length - client->head_sent;
        ssize_t count = outlast_write(client->fd, client->head + client->head_sent, rest);
        if (count < 0)
            return errno == EAGAIN ? 0 : -1;
        client->head_sent += (size_t)count;
    }
    if (client->body < 0 || client->at == client->end)
        return 1;
    off_t rest = client->end - client->at;
    ssize_t count = outlast_sendfile(client->fd, client->body, &client->at, (size_t)(rest < PIECE ? rest : PIECE));
    /* None: somebody has made the file shorter. */
    return count > 0 || (count < 0 && errno == EAGAIN) ? 0 : -1;
}

/* From here on no generation sees the request again. */
static void end_answer(struct client *client)
{
    size_t length = client->request.length;
    int body = client->body;
    client->note = (struct note){.closing = client->closes};
    outlast_set_note(client->fd, &client->note, sizeof client->note);
    outlast_done(client->fd, client->closes ? client->have : length);
    /* Not before, as the note has told its number. */
    if (body >= 0)
        close(body);
    client->body = -1;
    client->have = client->closes ? 0 : client->have - length;
    memmove(client->input, client->input + length, client->have);
    memset(&client->request, 0, sizeof client->request);
    client->head_length = client->head_sent = 0;
    client->cgi_runs = 0;
    client->phase = client->closes ? DRAINING : READING;
    if (client->closes)
        outlast_shutdown(client->fd, SHUT_WR);
}

static void answer(struct client *client, int status)
{
    client->phase = WRITING;
    if (status == 200) {
        answer_request(client);
    } else {
        client->closes = true;
        answer_error(client, status, status == 405 ? "Allow: GET, HEAD, POST\r\n" : "");
    }
}

/* As below. */
static int read_request(struct client *client)
{
    int status = request_parse(&client->request, client->input, client->have);
    if (client->request.expects_continue && (status == 0 || status == 200)) {
        /* Always, also if the body is here: the next generation must say the same. */
        client->request.expects_continue = false;
        memcpy(client->head, go_on, client->head_length = sizeof go_on - 1);
        if (write_answer(client) < 0)
            return -1;
    }
    if (status != 0) {
        answer(client, status);
        return 1;
    }
    ssize_t count = outlast_read(client->fd, client->input + client->have, REQUEST_MAX - client->have);
    if (count <= 0)
        return count < 0 && errno == EAGAIN ? 0 : -1;
    client->have += (size_t)count;
    return 1;
}

/* As below: an answer that has been sent is lost if what the client still sends meets a closed socket. */
static int drain(struct client *client)
{
    ssize_t count = outlast_read(client->fd, client->input, REQUEST_MAX);
    if (count <= 0)
        return count < 0 && errno == EAGAIN ? 0 : -1;
    outlast_done(client->fd, (size_t)count);
    return 1;
}

/* 1: it got on; 0: it has to wait; -1: it is over. */
static int step(struct client *client)
{
    if (client->phase == READING)
        return read_request(client);
    if (client->phase == DRAINING)
        return drain(client);
    if (client->phase == RUNNING)
        return 0;
    if (client->head_sent < client->head_length && !begin_answer(client))
        return -1;
    int result = write_answer(client);
    if (result == 1)
        end_answer(client);
    return result;
}

void client_go(struct client *client)
{
    int result = 1;
    for (int i = 0; i < STEPS && result == 1; i++)
        result = step(client);
    if (result < 0) {
        client_free(client);
        return;
    }
    client->active = client->phase == DRAINING ? client->active : now();
    /* Who is interrupted goes on as soon as there is room, which is at once. Not while a program runs, which the last
     * step may have started: whatever is told then means that the client is gone. */
    uint32_t events = EPOLLIN;
    if (client->phase == RUNNING)
        events = 0;
    else if (client->phase == WRITING || result == 1)
        events = EPOLLOUT;
    if (events != client->events)
        watch(client, client->fd, events, false);
}
