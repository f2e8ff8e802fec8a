/* The same source with Outlast and without: without it, its calls are those of the system, or nothing. */
#ifndef OUTLAST_OR_NOT_H
#define OUTLAST_OR_NOT_H

#ifdef WITH_OUTLAST
#include <outlast.h>
#else
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int outlast_listen(const struct sockaddr *address, socklen_t length, int backlog)
{
    int one = 1, listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, address, length) == 0 && listen(listener, backlog) == 0)
        return listener;
    close(listener);
    return -1;
}

#define outlast_read read
#define outlast_write write
#define outlast_sendfile sendfile
#define outlast_shutdown shutdown
#define outlast_close close
#define outlast_next() (-1)
#define outlast_keep(fd) (fd)
#define outlast_hold(fd) 0
#define outlast_done(fd, n) ((void)0)
#define outlast_set_note(fd, note, n) ((void)0)
#define outlast_get_note(fd, note, n) ((void)0)
#define outlast_busy() ((void)0)
#define outlast_idle() ((void)0)
#endif

#endif
