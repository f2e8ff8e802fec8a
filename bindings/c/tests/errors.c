/* What goes wrong is told: by -1, errno, and a text. */
#define _GNU_SOURCE
#include <outlast.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IS(condition)                                                                                                  \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s; errno %d, %s\n", __LINE__, #condition, errno, outlast_error());              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define FAILS(call, number) IS((errno = 0, (call)) == -1 && errno == (number))

static void *wait_for(void *pipe_end)
{
    char byte;
    IS(read(*(int *)pipe_end, &byte, 1) == 0);
    return NULL;
}

static void before_there_is_a_generation(int ends[2])
{
    char buffer[8];
    off_t offset = 0;
    IS(outlast_generation() == 0 && outlast_predecessor(buffer, sizeof buffer) == 0 && buffer[0] == 0);
    FAILS(outlast_next(), ENOTCONN);
    IS(strstr(outlast_error(), "outlast_register"));
    FAILS(outlast_hold(dup(ends[0])), ENOTCONN);
    FAILS(outlast_hold(900), EBADF);
    FAILS(outlast_done(ends[0], 1), EBADF);
    IS(strstr(outlast_error(), "not held"));
    FAILS(outlast_set_note(ends[0], "x", 1), EBADF);
    FAILS(outlast_sendfile(ends[0], ends[0], NULL, 1), EINVAL);
    FAILS(outlast_sendfile(ends[0], 900, &offset, 1), EBADF);
    FAILS(outlast_read(ends[0], NULL, 1), EFAULT);
    FAILS(outlast_write(ends[0], NULL, 1), EFAULT);
    IS(outlast_write(ends[0], NULL, 0) == 0);
    /* Not held: as ever. */
    IS(outlast_write(ends[0], "hello", 5) == 5 && outlast_read(ends[1], buffer, 8) == 5);
    outlast_busy();
    outlast_idle();
}

static void registering(void)
{
    struct outlast_policy unknown = {.reserved = {1}}, too_much = {.intensity = 1000};
    int waits[2];
    pthread_t thread;
    FAILS(outlast_register(&unknown), EINVAL);
    FAILS(outlast_register(&too_much), EINVAL);
    IS(pipe(waits) == 0 && pthread_create(&thread, NULL, wait_for, &waits[0]) == 0);
    FAILS(outlast_register(NULL), EINVAL);
    IS(strstr(outlast_error(), "threads"));
    IS(close(waits[1]) == 0 && pthread_join(thread, NULL) == 0);
    IS(outlast_register(NULL) == 1 && outlast_generation() == 1);
    FAILS(outlast_register(NULL), EALREADY);
    FAILS(outlast_refuse_with("x", 1), EALREADY);
}

static int change(struct outlast_change *change, void *size)
{
    static const char zeroes[1 << 20];
    for (size_t i = 0; i < *(size_t *)size; i++)
        outlast_answer(change, zeroes, sizeof zeroes);
    return outlast_state_put(change, "key", 3, "value", 5);
}

/* Each of these would wait for a lock that this thread has. */
static int uses_connections(struct outlast_change *change, void *fd)
{
    char buffer[4];
    int held = *(int *)fd;
    (void)change;
    FAILS(outlast_get_note(held, buffer, sizeof buffer), EINVAL);
    IS(strstr(outlast_error(), "within a change"));
    FAILS(outlast_set_note(held, "x", 1), EINVAL);
    FAILS(outlast_read(held, buffer, 4), EINVAL);
    FAILS(outlast_write(held, "x", 1), EINVAL);
    FAILS(outlast_done(held, 1), EINVAL);
    FAILS(outlast_flush(held), EINVAL);
    FAILS(outlast_shutdown(held, SHUT_WR), EINVAL);
    FAILS(outlast_shutdown(held, SHUT_RDWR), EINVAL);
    FAILS(outlast_transact(held, 1, uses_connections, fd), EINVAL);
    FAILS(outlast_close(held), EINVAL);
    FAILS(outlast_hold(held), EINVAL);
    FAILS(outlast_next(), EINVAL);
    return 1;
}

/* What was not done can be done again. */
static void changes(int fd, int peer, int with_state)
{
    size_t mebibytes = 16, none = 0;
    char buffer[4];
    IS(write(peer, "abcd", 4) == 4 && outlast_read(fd, buffer, 4) == 4);
    if (!with_state) {
        FAILS(outlast_transact(fd, 4, change, &none), ENODEV);
        IS(outlast_done(fd, 4) == 0);
        return;
    }
    FAILS(outlast_transact(fd, 4, change, &mebibytes), EMSGSIZE);
    alarm(60);
    IS(outlast_transact(fd, 4, uses_connections, &fd) == 1);
    alarm(0);
    IS(outlast_transact(fd, 4, change, &none) == 0);
}

static void connections(int ends[2], int with_state)
{
    char buffer[OUTLAST_NOTE_MAX + 1] = "";
    int file = open("/proc/self/exe", O_RDONLY), fd = ends[0];
    FAILS(outlast_next(), 0);
    FAILS(outlast_next_listener(), 0);
    FAILS(outlast_keep(fd), EBADF);
    FAILS(outlast_hold(file), EOPNOTSUPP);
    FAILS(fcntl(file, F_GETFD), EBADF);
    IS(outlast_hold(fd) == 0);
    FAILS(outlast_hold(fd), EBUSY);
    FAILS(outlast_set_note(fd, buffer, sizeof buffer), EINVAL);
    /* A note counts when the next thing is done. */
    IS(outlast_get_note(fd, buffer, sizeof buffer) == 0 && outlast_set_note(fd, "note", 4) == 0);
    IS(outlast_get_note(fd, buffer, sizeof buffer) == 0 && outlast_done(fd, 0) == 0);
    IS(outlast_get_note(fd, buffer, 2) == 4 && strcmp(buffer, "no") == 0);
    IS(write(ends[1], "abcdef", 6) == 6 && outlast_read(fd, buffer, 4) == 4 && memcmp(buffer, "abcd", 4) == 0);
    IS(outlast_read(fd, buffer, 4) == 2 && memcmp(buffer, "ef", 2) == 0 && outlast_done(fd, 6) == 0);
    changes(fd, ends[1], with_state);
    IS(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    FAILS(outlast_read(fd, buffer, 4), EAGAIN);
    IS(outlast_shutdown(fd, SHUT_WR) == 0 && read(ends[1], buffer, 1) == 0);
    FAILS(outlast_write(fd, "x", 1), EPIPE);
    IS(outlast_close(fd) == 0);
    FAILS(outlast_close(fd), EBADF);
}

/* Values of this thread are gone by then. */
static void behind_everything(void)
{
    if (outlast_close(900) != -1 || errno != EBADF || strlen(outlast_error()) == 0)
        abort();
}

/* With an argument: with a state. */
int main(int argc, char **argv)
{
    int ends[2], with_state = argc > 1;
    IS(!with_state || outlast_state_make(argv[1], 0) == 0);
    if (with_state)
        FAILS(outlast_state_make(argv[1], 0), EALREADY);
    IS(atexit(behind_everything) == 0);
    IS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    before_there_is_a_generation(ends);
    registering();
    /* Again, as what was open before is nobody's to take over. */
    IS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    connections(ends, with_state);
    puts("all is told");
    return 0;
}
