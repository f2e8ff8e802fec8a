/* With the C library's checked variants of its functions, and threads that are cancelled while they wait. Built with
   -D_FORTIFY_SOURCE=2. Argument: a port. Answers each line with "line N", N counting within this process. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener;

static void *accepts(void *nothing) {
    (void)nothing;
    for (;;)
        accept(listener, NULL, NULL);
}

static void *polls(void *nothing) {
    struct pollfd one = {.fd = -1};
    for (;;)
        poll(&one, 1, -1);
    return nothing;
}

int main(int count, char **arguments) {
    struct pollfd list[64];
    int on = 1, used = 1, lines = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(arguments[1]) : 0)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 64) < 0) {
        perror("listen");
        return 1;
    }
    void *(*all[])(void *) = {polls, accepts};
    /* One that accepts takes connections, so only where there are none yet. */
    for (int each = 0; each < (getenv("OUTLAST_TEST_CANCEL") ? 2 : 1); each++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, all[each], NULL);
        usleep(20000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            return 2;
    }
    list[0].fd = listener;
    list[0].events = POLLIN;
    for (;;) {
        poll(list, used, -1);
        for (int each = used - 1; each > 0; each--) {
            char text[256], answer[64];
            if (!(list[each].revents & (POLLIN | POLLHUP | POLLERR)))
                continue;
            ssize_t length = recv(list[each].fd, text, sizeof text - (size_t)(count - 2), 0);
            if (length <= 0) {
                close(list[each].fd);
                list[each] = list[--used];
                continue;
            }
            if (memcmp(text, "abort", 5) == 0)
                abort();
            ssize_t size = snprintf(answer, sizeof answer, "line %d\n", ++lines);
            if (write(list[each].fd, answer, (size_t)size) != size)
                return 3;
        }
        if (list[0].revents & POLLIN && used < 64) {
            list[used].events = POLLIN;
            list[used++].fd = accept(listener, NULL, NULL);
        }
    }
}
