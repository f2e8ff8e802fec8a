/* A small HTTP/1.1 server: files and CGI programs, one process, one loop around epoll. */
#ifndef HTTPD_H
#define HTTPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum {
    REQUEST_MAX = 60 << 10, /* with its body: Outlast holds 64 KiB of input that is not dealt with */
    HEAD_MAX = 8 << 10,     /* of a request, and of an answer */
    HEADERS_MAX = 64,
    PATH_BYTES = 2048,
};

/* A request, as far as it has come. The texts are in the client's input. */
struct request {
    char *method, *target, *query; /* the target as it was sent, up to "?"; the query behind that, or "" */
    char path[PATH_BYTES];         /* the target, decoded */
    int minor;                     /* of HTTP/1.x */
    struct {
        char *name, *value;
    } headers[HEADERS_MAX];
    size_t header_count;
    bool keeps_alive, expects_continue, chunked;
    char *body;
    size_t body_length;
    size_t head_length;    /* 0: its end is not here yet */
    size_t content_length; /* as the head says */
    size_t at;             /* where in the input to go on */
    bool in_trailer;
    size_t length; /* of everything, once that is here */
};

/* What the next generation must know, to answer an interrupted request with the same bytes: everything that would
 * come out differently the second time. It is kept with the connection (outlast_set_note), 64 bytes at most. */
struct note {
    uint64_t id[2];    /* of a request for a CGI program */
    uint64_t answer;   /* fingerprint of the answer's head, of which bytes may have been sent; 0: none has */
    int64_t time;      /* that the answer tells */
    int32_t body;      /* descriptor of the answer's body, plus 1 */
    uint32_t sent;     /* bytes of the answer that came before the note */
    uint32_t closing;  /* nothing is answered any more */
};

enum phase { READING, RUNNING, WRITING, DRAINING };

struct client {
    int fd;
    enum phase phase;
    uint32_t events; /* that epoll waits for */
    time_t active;   /* when it last got on, on the monotonic clock */
    struct note note;
    struct request request;
    size_t have; /* bytes of input */
    char input[REQUEST_MAX];

    /* The answer: a head, and a part of a file. */
    char head[2 * HEAD_MAX];
    size_t head_length, head_sent;
    int body; /* or -1 */
    off_t at, end;
    bool closes;

    /* A CGI program that runs for it, and where its output goes. */
    pid_t cgi;
    int cgi_pidfd, spool; /* or -1 */
    int cgi_runs;
};

/* main.c */
extern int root;     /* the folder that is served */
extern int port;
void watch(struct client *client, int fd, uint32_t events, bool add);
void unwatch(int fd);
time_t now(void);

/* client.c */
struct client *client_new(int fd);
void client_go(struct client *client); /* as far as that is possible now; may free it */
void client_free(struct client *client);
void client_note(struct client *client);

/* request.c: 0 (more input is needed), 200 (it is whole) or the status of an error */
int request_parse(struct request *request, char *input, size_t have);
const char *request_header(const struct request *request, const char *name); /* or NULL */

/* answer.c: fill in the client's answer */
void answer_request(struct client *client);
void answer_error(struct client *client, int status, const char *more);
void answer_head(struct client *client, const char *status, const char *headers, off_t length);
int open_below_root(const char *path, int flags);

/* cgi.c */
bool is_cgi(const char *path);
void cgi_start(struct client *client);
void cgi_ended(struct client *client); /* its process has */
void cgi_kill(struct client *client);

#endif
