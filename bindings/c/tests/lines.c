/* Answers lines, with a thread for each client, and crashes when it is told to. */
#define _GNU_SOURCE
#include <outlast.h>

#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void crash(void)
{
    *(volatile int *)8 = 0;
}

static void say(int fd, const char *bytes, size_t size)
{
    for (ssize_t count; size > 0 && (count = outlast_write(fd, bytes, size)) > 0; size -= (size_t)count)
        bytes += count;
}

static void answer(int fd, const char *line)
{
    char text[200] = "";
    int until = 0, size = 0;
    if (sscanf(line, "crash %d", &until) == 1 && outlast_generation() <= until)
        crash();
    if (sscanf(line, "hang %d", &until) == 1) {
        outlast_busy();
        while (outlast_generation() <= until)
            pause();
        outlast_idle();
    }
    if (sscanf(line, "half of %d %d", &size, &until) == 2) {
        char *bytes = malloc((size_t)size);
        for (int i = 0; i < size; i++)
            bytes[i] = (char)('a' + i % 26);
        say(fd, bytes, (size_t)size / 2);
        if (outlast_generation() <= until)
            crash();
        say(fd, bytes + size / 2, (size_t)size - (size_t)size / 2);
        free(bytes);
    } else if (strcmp(line, "generation") == 0) {
        snprintf(text, sizeof text, "%d", outlast_generation());
    } else if (strcmp(line, "predecessor") == 0) {
        while (outlast_generation() > 1 && outlast_predecessor(text, sizeof text) == 0)
            usleep(1000);
    } else if (strcmp(line, "recall") == 0) {
        outlast_get_note(fd, text, sizeof text);
    } else {
        snprintf(text, sizeof text, "%s", line);
    }
    if (strncmp(line, "note ", 5) == 0)
        outlast_set_note(fd, line + 5, strlen(line + 5));
    strcat(text, "\n");
    say(fd, text, strlen(text));
}

/* "add NAME UNTIL": counts what NAME has, and crashes in the middle of that up to the generation UNTIL. */
static int add(struct outlast_change *change, void *line)
{
    char name[50], text[50];
    uint64_t count = 0;
    int until = 0;
    if (sscanf(line, "add %49s %d", name, &until) < 1)
        return -1;
    outlast_state_get(change, name, strlen(name), &count, sizeof count);
    count++;
    if (outlast_state_put(change, name, strlen(name), &count, sizeof count) < 0)
        return -1;
    outlast_answer(change, text, (size_t)snprintf(text, sizeof text, "%d\n", (int)count));
    if (outlast_generation() <= until)
        crash();
    return 0;
}

static void *serve(void *argument)
{
    int fd = (int)(intptr_t)argument;
    char line[200];
    size_t have = 0;
    outlast_flush(fd);
    for (ssize_t count; (count = outlast_read(fd, line + have, sizeof line - 1 - have)) > 0;) {
        char *end;
        have += (size_t)count;
        while ((end = memchr(line, '\n', have))) {
            size_t length = (size_t)(end + 1 - line);
            *end = 0;
            if (strncmp(line, "add ", 4) == 0) {
                if (outlast_transact(fd, length, add, line) != 0)
                    errx(1, "%s", outlast_error());
            } else {
                answer(fd, line);
                outlast_done(fd, length);
            }
            memmove(line, line + length, have -= length);
        }
    }
    outlast_close(fd);
    return NULL;
}

static void begin(int fd)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) != 0)
        err(1, "thread");
    pthread_detach(thread);
}

int main(void)
{
    struct outlast_policy policy = {.intensity = 20, .hang_timeout_ms = 300};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
    if (bind(listener, (struct sockaddr *)&at, length) < 0 || listen(listener, 100) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &length) < 0)
        err(1, "listen");
    printf("listening on 127.0.0.1:%d\n", ntohs(at.sin_port));
    fflush(stdout);
    outlast_refuse_with("refused\n", 8);
    if (outlast_state_make("lines", 0) < 0 || outlast_register(&policy) < 0)
        errx(1, "%s", outlast_error());
    while ((fd = outlast_next()) >= 0)
        begin(fd);
    while ((fd = accept(listener, NULL, NULL)) >= 0)
        if (outlast_hold(fd) == 0)
            begin(fd);
    err(1, "accept");
}
