/* liboutlast: servers that outlive their process.
 *
 * A server calls outlast_register when it is initialised, and serves. When it crashes, whatever kills it,
 * outlast_register returns once more, in the next generation: with the same open descriptors under the same numbers,
 * and everything in memory as it was at the call. It goes on with the connections that outlast_next gives it. Clients
 * see a pause of less than a millisecond.
 *
 * On its connections, a server uses outlast_read, outlast_write and outlast_close instead of read, write and close,
 * and says with outlast_done that a request is dealt with. A request that was not done when the server crashed is read
 * again by the next generation; what was sent of its answer is not sent again. So the same request must have the same
 * answer: what may differ from run to run, such as the time, is left to the next generation in a note.
 *
 *     #define _GNU_SOURCE // for accept4, before the first #include
 *
 *     int listener = outlast_listen((struct sockaddr *)&address, sizeof address, SOMAXCONN);
 *     if (listener < 0 || outlast_register(NULL) < 0)
 *         errx(1, "%s", outlast_error());
 *     while ((fd = outlast_next()) >= 0)
 *         serve(fd);
 *     while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && outlast_hold(fd) == 0)
 *         serve(fd);
 *
 * Functions return -1 when they fail, set errno, and outlast_error() says more. They can be called from all threads;
 * those for one connection wait for each other: two threads can share one only if it does not block.
 */
#ifndef OUTLAST_H
#define OUTLAST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Generations ---- */

/* When a crash is followed by another generation. 0 stands for the default; an application that sets some by name
 * (`{.intensity = 10}`) has set the others to 0. */
struct outlast_policy {
    uint64_t transient_after_ms;  /* a crash so long after the last one has nothing to do with it; 60,000 */
    uint64_t intensity;           /* so many crashes within the window are bad luck; 5, at most 20 */
    uint64_t intensity_window_ms; /* 30,000 */
    uint64_t hang_timeout_ms;     /* busy for so long without outlast_busy: it is killed, and succeeded; never */
    uint64_t reserved[4];         /* 0 */
};

/* What clients are told whose request has crashed three generations, before they are disconnected, such as HTTP's 500.
 * To be called before outlast_register; the bytes are copied. Errors: EALREADY (it is too late). */
int outlast_refuse_with(const void *bytes, size_t size);

/* Listens at an IPv4 or IPv6 address, or takes the socket over that listens there, where this process goes on for another
 * binary (`outlast upgrade`): before outlast_register. Otherwise as socket, SO_REUSEADDR, bind and listen(2). Returns the socket:
 * a new one blocks, and is close-on-exec; one that was taken over has the options that it had. Errors: as those calls;
 * EAFNOSUPPORT, EINVAL (no such address). */
int outlast_listen(const struct sockaddr *address, socklen_t length, int backlog);

/* From here on the server outlives its process. To be called once, when it is initialised, listens perhaps, and has no
 * threads yet. Returns in each generation, one at a time: its number, 1 in the first. The process that calls it stays
 * as their parent, passes signals on, and ends when a generation exits with code 0, or is told to end. SIGPIPE is
 * ignored from here on, unless it has a handler: an application that starts other programs sets it to SIG_DFL for them.
 *
 * policy: NULL for the defaults. Errors: EINVAL (there are threads; a policy that cannot be kept), EALREADY (registered
 * before), or what the kernel has refused; the process goes on as it was, and does not outlive a crash. */
int outlast_register(const struct outlast_policy *policy);

/* The number of this generation; 0 before it is registered. */
int outlast_generation(void);

/* How the last generation died, as text ("been killed by SIGSEGV"), cut off to `size` bytes with the zero at the end.
 * Returns the length of the whole text. 0: there was none, or it is not known yet, as a generation begins before. */
size_t outlast_predecessor(char *text, size_t size);

/* The next connection that earlier generations have left, held: -1 with errno 0 when there is none left. Call what you
 * call when it is readable, right away: input that was read before is given again, and no event tells of that.
 *
 * When there is none left, what else they had opened is closed, but for what was kept. Errors: ENOTCONN (there is no
 * generation). */
int outlast_next(void);

/* As outlast_next, for sockets that listen and were opened after outlast_register. To be called before outlast_next has
 * returned -1. */
int outlast_next_listener(void);

/* Takes over another descriptor that earlier generations had opened, such as a file that is being sent; its number is
 * known from a note. To be called before outlast_next has returned -1. Returns `fd`. Errors: EBADF (there is none). */
int outlast_keep(int fd);

/* Signs of life of a thread with an event loop: outlast_idle before it waits for events, outlast_busy behind that, and
 * now and then within long work. See hang_timeout_ms. */
void outlast_busy(void);
void outlast_idle(void);

/* Why the last call failed that did so in this thread. Until the next one does. */
const char *outlast_error(void);

/* ---- Connections ---- */

/* From now on requests of this connection are dealt with exactly once: a TCP or UNIX stream socket that was accepted,
 * or a pipe. Use the functions below on it, above all outlast_close. Connections from outlast_next are held already.
 * Urgent bytes (MSG_OOB) of TCP are read in their place from here on (SO_OOBINLINE).
 *
 * Errors: EBUSY (held already: was it closed with close?), EBADF, EOPNOTSUPP (it is something else), EMFILE (its
 * number is 65536 or more), ENOTCONN (there is no generation). But for EBUSY it is closed then, as it cannot be
 * served. */
int outlast_hold(int fd);

/* As read(2): what comes after what was read last. It stays held until it is done; the next generation reads it again.
 * On what is not held: read(2). Errors: as read(2); ENOMEM when a request that is not done is longer than 16 MiB, or
 * too many are longer than 64 KiB. */
ssize_t outlast_read(int fd, void *buffer, size_t size);

/* As write(2), but what an earlier generation has sent of the same answer is not sent again, and counts
 * as written. On what is not held: write(2). */
ssize_t outlast_write(int fd, const void *bytes, size_t size);

/* As sendfile(2), likewise: up to `size` bytes of `file` from `*offset` on, which it raises. Errors: EINVAL also when
 * `offset` is NULL, as the file's own offset would be another one in the next generation. */
ssize_t outlast_sendfile(int fd, int file, off_t *offset, size_t size);

/* The next `size` bytes of the input are dealt with, and all is written that is to be written for them: no generation
 * sees them again. Within a request, with 0, it only has the note count, together with what was written so far.
 * Errors: EBADF (not held). */
int outlast_done(int fd, size_t size);

/* What the next generation finds with the connection: up to OUTLAST_NOTE_MAX bytes. They count from the next
 * outlast_done on, at once with that. Errors: EINVAL (too long), EBADF (not held). */
#define OUTLAST_NOTE_MAX 64
int outlast_set_note(int fd, const void *note, size_t size);

/* The note that counts. Returns its length, of which at most `size` bytes are copied; 0: there is none. Errors: EBADF
 * (not held). */
ssize_t outlast_get_note(int fd, void *note, size_t size);

/* As shutdown(2). SHUT_WR and SHUT_RDWR send first what is left of answers of outlast_transact. Errors: EAGAIN (the socket
 * does not take all of that now: nothing is shut down; call outlast_flush until it is sent). */
int outlast_shutdown(int fd, int how);

/* As close(2), and nothing is held any more. On what is not held: close(2). */
int outlast_close(int fd);

/* ---- State: a map from bytes to bytes that every generation finds, and that is right after a crash at any instruction ---- */

/* Makes the state, of `size` bytes (0: 1 MiB), called `name`; before outlast_register. A
 * program in Rust with a root of a u64 and a Map, and the layout "outlast-c-map", has the same.
 * Errors: EALREADY (registered, or made), ENOMEM, EINVAL (size). */
int outlast_state_make(const char *name, size_t size);

/* A change of the state that is under way. */
struct outlast_change;

/* Deals with the next `size` bytes of the input by a change of the state, exactly once: `change` is called with what it
 * needs, makes the change and says the answer; change, request and answer then count at one instant. After a crash all
 * of it has happened, and the rest of the answer is sent by outlast_flush; or nothing has, and the request is read again.
 * Where `change` returns anything but 0, nothing has changed, the request is not done, and this returns 1.
 * Errors, after which nothing has changed and the request is not done either: EBADF (not held), ENODEV (no state), ENOSPC
 * (no room for the change or the answer), EMSGSIZE (an answer longer than 16 MiB, with what is not sent of earlier ones),
 * EINVAL (called within a change, or the state is damaged). All others are the socket's: then the request is done. */
int outlast_transact(int fd, size_t size, int (*change)(struct outlast_change *change, void *argument), void *argument);

/* Sends what is left of such answers: to be called with each connection of outlast_next, and where a socket that does not
 * block has room again. Errors: EBADF (not held); as write(2), EAGAIN when it does not take more. */
int outlast_flush(int fd);

/* Within a change no connection can be used, nor another one got: the functions above give EINVAL there, and do nothing. */

/* Within a change: says the answer, or more of it: up to 16 MiB. */
void outlast_answer(struct outlast_change *change, const void *bytes, size_t size);

/* Within a change: the value of a key. Returns its length, of which at most `size` bytes are copied. Errors: ENOENT. */
ssize_t outlast_state_get(struct outlast_change *change, const void *key, size_t key_size, void *value, size_t size);

/* Within a change: sets the value of a key. Errors: ENOSPC. */
int outlast_state_put(struct outlast_change *change, const void *key, size_t key_size, const void *value, size_t size);

/* Within a change: takes a key away. Returns 1, or 0 if there was none. */
int outlast_state_remove(struct outlast_change *change, const void *key, size_t key_size);

#ifdef __cplusplus
}
#endif

#endif
