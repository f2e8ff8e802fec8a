/* A CGI program with a session for each user, which stays right whenever it crashes (Chang et al. 2006, 4.2): each
 * request counts once, and has one answer.
 *
 * The state of a session is a file below SESSION_DIR, which is replaced as a whole. A request is in it with everything
 * that its answer was made of, chance included: whoever asks again with the same OUTLAST_REQUEST_ID is told the same.
 * "?crash=before", "during" and "after" crash once on the way, "random" at any moment, perhaps. */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* No more requests of one session are under way at a time, by far. */
enum { HISTORY_MAX = 100, BODY_MAX = 64 << 10, CONTENT_MAX = 40000, ID = 32 };

struct entry {
    char request[ID + 1];
    unsigned long long count, seed, posted_bytes, posted_sum;
};

struct session {
    char id[ID + 1], file[512], crash[16], request[ID + 1];
    size_t length;
    struct entry history[HISTORY_MAX];
};

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Fowler, Noll, Vo. */
static uint64_t sum(uint64_t hash, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3;
    return hash;
}

/* Steele, Lea, Flood 2014. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t mixed = *state += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

static void crash_once(const struct session *session, const char *where)
{
    char mark[600];
    if (strcmp(session->crash, where) != 0)
        return;
    snprintf(mark, sizeof mark, "%s.crashed-%s", session->file, session->request);
    if (open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0)
        raise(SIGSEGV);
}

/* One run of four, within two milliseconds, which is about how long it takes. Not all: the server tries ten times. */
static void crash_at_random(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec in = {0};
    timer_t timer;
    uint32_t chance;
    if (getrandom(&chance, sizeof chance, 0) < 0)
        fail("getrandom");
    if (chance % 4 != 0)
        return;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0)
        fail("timer_create");
    in.it_value.tv_nsec = 1 + chance / 4 % 2000000;
    timer_settime(timer, 0, &in, NULL);
}

/* 32 hexadecimal digits: also safe as the name of a file. */
static bool is_id(const char *text)
{
    size_t length = 0;
    while (isxdigit((unsigned char)text[length]))
        length++;
    return length == ID;
}

static void identify(struct session *session)
{
    const char *folder = getenv("SESSION_DIR"), *request = getenv("OUTLAST_REQUEST_ID");
    const char *cookie = getenv("HTTP_COOKIE"), *query = getenv("QUERY_STRING");
    if (!folder || !request || !is_id(request)) {
        fprintf(stderr, "session: SESSION_DIR and OUTLAST_REQUEST_ID must be set\n");
        exit(1);
    }
    cookie = cookie ? strstr(cookie, "session=") : NULL;
    /* Who is new becomes the same one in every run. */
    const char *id = cookie && is_id(cookie + 8) ? cookie + 8 : request;
    snprintf(session->id, sizeof session->id, "%s", id);
    snprintf(session->request, sizeof session->request, "%s", request);
    snprintf(session->file, sizeof session->file, "%s/%s", folder, session->id);
    if (query)
        sscanf(query, "crash=%15[a-z]", session->crash);
}

static void lock(const struct session *session)
{
    char name[600];
    snprintf(name, sizeof name, "%s.lock", session->file);
    /* Until this process ends, in whatever way. */
    int file = open(name, O_CREAT | O_RDWR, 0600);
    if (file < 0 || flock(file, LOCK_EX) < 0)
        fail(name);
}

static void load(struct session *session)
{
    FILE *file = fopen(session->file, "r");
    struct entry entry;
    while (file && session->length < HISTORY_MAX &&
           fscanf(file, "%32s %llu %llu %llu %llx\n", entry.request, &entry.count, &entry.seed, &entry.posted_bytes,
                  &entry.posted_sum) == 5)
        session->history[session->length++] = entry;
    if (file)
        fclose(file);
}

/* All of it or nothing. It need not outlive the machine: no fsync. */
static void store(const struct session *session)
{
    char name[600];
    snprintf(name, sizeof name, "%s.new", session->file);
    FILE *file = fopen(name, "w");
    if (!file)
        fail(name);
    for (size_t i = 0; i < session->length; i++) {
        const struct entry *entry = &session->history[i];
        fprintf(file, "%s %llu %llu %llu %llx\n", entry->request, entry->count, entry->seed, entry->posted_bytes,
                entry->posted_sum);
        if (i == session->length / 2) {
            fflush(file);
            crash_once(session, "during");
        }
    }
    if (fclose(file) != 0 || rename(name, session->file) < 0)
        fail(name);
}

/* What this request has done to the session, now or in an earlier run. */
static const struct entry *apply(struct session *session, const char *body, size_t length)
{
    for (size_t i = 0; i < session->length; i++)
        if (strcmp(session->history[i].request, session->request) == 0)
            return &session->history[i];
    unsigned long long count = session->length > 0 ? session->history[session->length - 1].count : 0;
    if (session->length == HISTORY_MAX)
        memmove(session->history, session->history + 1, --session->length * sizeof *session->history);
    struct entry *entry = &session->history[session->length++];
    memcpy(entry->request, session->request, sizeof entry->request);
    entry->count = count + 1;
    entry->posted_bytes = length;
    entry->posted_sum = sum(0, body, length);
    if (getrandom(&entry->seed, sizeof entry->seed, 0) < 0)
        fail("getrandom");
    store(session);
    return entry;
}

static void print_answer(const struct session *session, const struct entry *entry)
{
    static char text[CONTENT_MAX + 256];
    uint64_t random = entry->seed;
    size_t length = (size_t)snprintf(text, sizeof text, "session %s\ncount %llu\nposted %llu %llx\n", session->id,
                                     entry->count, entry->posted_bytes, entry->posted_sum);
    for (size_t rest = next_random(&random) % CONTENT_MAX; rest > 0; rest--)
        text[length++] = (char)('a' + next_random(&random) % 26);
    printf("Content-Type: text/plain\nSet-Cookie: session=%s; Path=/; HttpOnly; SameSite=Lax\n\n", session->id);
    fwrite(text, 1, length, stdout);
    fflush(stdout);
    crash_once(session, "after");
    printf("\nsum %016llx\n", (unsigned long long)sum(0, text, length));
}

int main(void)
{
    static struct session session;
    static char body[BODY_MAX];
    identify(&session);
    if (strcmp(session.crash, "random") == 0)
        crash_at_random();
    size_t length = fread(body, 1, sizeof body, stdin);
    lock(&session);
    load(&session);
    crash_once(&session, "before");
    print_answer(&session, apply(&session, body, length));
    return fflush(stdout) == 0 ? 0 : 1;
}
