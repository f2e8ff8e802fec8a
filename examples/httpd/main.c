/* httpd [ADDRESS:]PORT FOLDER: serves the files below FOLDER, and the programs in its cgi-bin. */
#define _GNU_SOURCE
#include "httpd.h"
#include "outlast_or_not.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 8192, IDLE_SECONDS_MAX = 60, DRAIN_SECONDS_MAX = 2 };

int root, port;
static int loop, listener, clients_end = DESCRIPTORS_MAX;
/* Whose socket, or program, a descriptor is. */
static struct client *owners[DESCRIPTORS_MAX];

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "httpd: cannot %s: %s\n", what, strerror(errno));
    exit(1);
}

time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time.tv_sec;
}

void watch(struct client *client, int fd, uint32_t events, bool add)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (fd == client->fd)
        client->events = events;
    owners[fd] = client;
    epoll_ctl(loop, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

void unwatch(int fd)
{
    epoll_ctl(loop, EPOLL_CTL_DEL, fd, NULL);
    owners[fd] = NULL;
}

static void listen_to(int on, bool add)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.fd = listener};
    epoll_ctl(loop, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, listener, &event);
}

static void begin(int fd)
{
    struct client *client = client_new(fd);
    if (client)
        client_go(client);
}

static void accept_all(void)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (outlast_hold(fd) == 0)
            begin(fd);
        if (fd >= clients_end) {
            errno = EMFILE;
            break;
        }
    }
    /* No descriptors: who comes waits, until the next tick at the least. */
    if (errno == EMFILE || errno == ENFILE)
        listen_to(false, false);
}

/* The next client gets the lowest number that is free. */
static bool has_room(void)
{
    int fd = dup(listener);
    if (fd >= 0)
        close(fd);
    return fd >= 0 && fd <= clients_end;
}

static void tick(void)
{
    time_t time = now();
    for (int fd = 0; fd < DESCRIPTORS_MAX; fd++) {
        struct client *client = owners[fd];
        if (!client || client->fd != fd || client->phase == RUNNING)
            continue;
        if (time - client->active > (client->phase == DRAINING ? DRAIN_SECONDS_MAX : IDLE_SECONDS_MAX))
            client_free(client);
    }
    listen_to(has_room(), false);
}

static void on_event(struct client *client, int fd)
{
    if (fd == client->cgi_pidfd) {
        cgi_ended(client);
        client_go(client);
    } else if (client->phase == RUNNING) {
        /* Nothing is waited for but that the client is gone. */
        client_free(client);
    } else {
        client_go(client);
    }
}

static void serve(void)
{
    struct epoll_event events[64];
    for (time_t last = now();;) {
        outlast_idle();
        int count = epoll_wait(loop, events, 64, 1000);
        outlast_busy();
        if (count < 0 && errno != EINTR)
            fail("wait for events");
        bool somebody_comes = false;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener)
                somebody_comes = true;
            else if (owners[fd])
                on_event(owners[fd], fd);
        }
        /* Last: who comes may get a number that was somebody else's when these events were told. */
        if (somebody_comes)
            accept_all();
        if (now() != last) {
            last = now();
            tick();
        }
    }
}

static void listen_at(const char *text)
{
    char address[64] = "127.0.0.1";
    const char *colon = strrchr(text, ':');
    int one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    if (colon)
        snprintf(address, sizeof address, "%.*s", (int)(colon - text), text);
    at.sin_port = htons((uint16_t)atoi(colon ? colon + 1 : text));
    errno = EINVAL;
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        fail("understand the address: it is [IPv4:]PORT");
    listener = outlast_listen((struct sockaddr *)&at, sizeof at, SOMAXCONN);
    if (listener < 0 || fcntl(listener, F_SETFL, O_NONBLOCK) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &length) < 0)
        fail("listen");
    /* Connections take it from their listener: a short body must not wait for the head's acknowledgement. */
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    port = ntohs(at.sin_port);
    printf("listening on %s:%d\n", address, port);
    fflush(stdout);
}

static void take_over(void)
{
#ifdef WITH_OUTLAST
    /* For an example that is there to be crashed. */
    struct outlast_policy policy = {.intensity = 20, .intensity_window_ms = 20, .hang_timeout_ms = 10000};
    static const char refusal[] = "HTTP/1.1 500 Internal Server Error\r\n"
                                  "Content-Length: 0\r\nConnection: close\r\n\r\n";
    outlast_refuse_with(refusal, sizeof refusal - 1);
    int generation = outlast_register(&policy);
    if (generation < 0) {
        fprintf(stderr, "httpd: %s\n", outlast_error());
        exit(1);
    }
    printf("generation %d %d\n", generation, getpid());
    fflush(stdout);
#endif
    loop = epoll_create1(EPOLL_CLOEXEC);
    if (loop < 0)
        fail("make an epoll");
    listen_to(true, true);
    for (int fd; (fd = outlast_next()) >= 0;)
        begin(fd);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: httpd [ADDRESS:]PORT FOLDER\n");
        return 2;
    }
    root = open(argv[2], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail("open the folder");
    signal(SIGPIPE, SIG_IGN);
    /* Every number has its place in the table. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > DESCRIPTORS_MAX)
        limit.rlim_max = DESCRIPTORS_MAX;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        fail("limit the descriptors");
    /* Each client may need another one, for its file or program. */
    clients_end = (int)limit.rlim_cur / 2;
    listen_at(argv[1]);
    take_over();
    serve();
}
