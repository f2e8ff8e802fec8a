/* CGI/1.1 programs: RFC 3875.
 *
 * A program's output goes into memory (a memfd) and is sent when the program has ended well. That costs the time to the
 * first byte, and is the simplest way in which any program can crash at any moment: as long as it runs nothing is sent,
 * so it can be run again; once it has ended its output is there, whatever happens to the server. What a program
 * *changes* it has to change once for each OUTLAST_REQUEST_ID, which is the same in every run for a request. */
#define _GNU_SOURCE
#include "httpd.h"
#include "outlast_or_not.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS_MAX = 10, SECONDS_MAX = 60, OUTPUT_MAX = 64 << 20 };

static const char folder[] = "/cgi-bin/";

bool is_cgi(const char *path)
{
    return strncmp(path, folder, sizeof folder - 1) == 0;
}

static void set_number(const char *name, unsigned long long number)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", number);
    setenv(name, text, 1);
}

static void set_headers(const struct request *request)
{
    for (size_t i = 0; i < request->header_count; i++) {
        char name[128] = "HTTP_";
        size_t length = strlen(name);
        for (const char *at = request->headers[i].name; *at && length + 1 < sizeof name; at++)
            name[length++] = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
        /* HTTP_PROXY has another meaning. */
        if (strcmp(name, "HTTP_PROXY") != 0)
            setenv(name, request->headers[i].value, 1);
    }
}

/* Of the server's own environment: the rest is nobody's business. */
static void keep_environment(void)
{
    const char *path = getenv("PATH"), *sessions = getenv("SESSION_DIR");
    clearenv();
    if (path)
        setenv("PATH", path, 1);
    if (sessions)
        setenv("SESSION_DIR", sessions, 1);
}

static void set_environment(const struct client *client, const char *script, const char *info)
{
    const struct request *request = &client->request;
    const char *type = request_header(request, "Content-Type"), *host = request_header(request, "Host");
    char name[2 * PATH_BYTES], id[33], address[INET_ADDRSTRLEN] = "";
    struct sockaddr_in peer = {0};
    socklen_t length = sizeof peer;
    if (getpeername(client->fd, (struct sockaddr *)&peer, &length) == 0)
        inet_ntop(AF_INET, &peer.sin_addr, address, sizeof address);
    keep_environment();
    set_headers(request);
    snprintf(name, sizeof name, "%s%s", folder, script);
    snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)client->note.id[0],
             (unsigned long long)client->note.id[1]);
    setenv("OUTLAST_REQUEST_ID", id, 1);
    setenv("GATEWAY_INTERFACE", "CGI/1.1", 1);
    setenv("SERVER_SOFTWARE", "httpd", 1);
    setenv("SERVER_PROTOCOL", request->minor > 0 ? "HTTP/1.1" : "HTTP/1.0", 1);
    setenv("SERVER_NAME", host ? host : "localhost", 1);
    set_number("SERVER_PORT", (unsigned long long)port);
    setenv("REMOTE_ADDR", address, 1);
    setenv("REQUEST_METHOD", request->method, 1);
    setenv("SCRIPT_NAME", name, 1);
    setenv("QUERY_STRING", request->query, 1);
    if (*info)
        setenv("PATH_INFO", info, 1);
    if (type)
        setenv("CONTENT_TYPE", type, 1);
    if (request->body_length > 0)
        set_number("CONTENT_LENGTH", request->body_length);
}

/* In a process of its own: becomes the program. */
static _Noreturn void become(const struct client *client, const char *script, const char *info, int input)
{
    char program[PATH_BYTES + 2];
    struct rlimit limit = {OUTPUT_MAX, OUTPUT_MAX};
    set_environment(client, script, info);
    snprintf(program, sizeof program, "./%s", script);
    signal(SIGPIPE, SIG_DFL);
    alarm(SECONDS_MAX);
    if (dup2(input, STDIN_FILENO) >= 0 && dup2(client->spool, STDOUT_FILENO) >= 0 &&
        setrlimit(RLIMIT_FSIZE, &limit) == 0 && fchdir(root) == 0 && chdir(folder + 1) == 0)
        execl(program, script, (char *)NULL);
    _exit(127);
}

/* The program's name, alone, and what is behind it. Whether there is such a program. */
static bool find_program(const struct client *client, char script[static PATH_BYTES], const char **info)
{
    const char *name = client->request.path + sizeof folder - 1;
    size_t length = strcspn(name, "/");
    char path[2 * PATH_BYTES];
    struct stat stat;
    snprintf(script, PATH_BYTES, "%.*s", (int)length, name);
    snprintf(path, sizeof path, "%s%s", folder + 1, script);
    *info = name + length;
    int file = length > 0 && *script != '.' ? open_below_root(path, O_PATH) : -1;
    if (file < 0)
        return false;
    bool runs = fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_mode & 0111;
    close(file);
    return runs;
}

static int file_with(const char *bytes, size_t length)
{
    int file = memfd_create("input", MFD_CLOEXEC);
    if (file >= 0 && (pwrite(file, bytes, length, 0) != (ssize_t)length)) {
        close(file);
        return -1;
    }
    return file;
}

/* Whether it runs. */
static bool run(struct client *client, const char *script, const char *info)
{
    int input = file_with(client->request.body, client->request.body_length);
    client->spool = memfd_create("output", MFD_CLOEXEC);
    if (input >= 0 && client->spool >= 0) {
        client->cgi_runs++;
        client->cgi = fork();
        if (client->cgi == 0)
            become(client, script, info, input);
    }
    if (input >= 0)
        close(input);
    if (client->cgi <= 0)
        return false;
    client->cgi_pidfd = (int)syscall(SYS_pidfd_open, client->cgi, 0);
    if (client->cgi_pidfd < 0) {
        cgi_kill(client);
        return false;
    }
    watch(client, client->cgi_pidfd, EPOLLIN, true);
    client->phase = RUNNING;
    return true;
}

static void drop_spool(struct client *client)
{
    if (client->spool >= 0)
        close(client->spool);
    client->spool = -1;
}

void cgi_kill(struct client *client)
{
    if (client->cgi > 0) {
        kill(client->cgi, SIGKILL);
        waitpid(client->cgi, NULL, 0);
        client->cgi = 0;
    }
    if (client->cgi_pidfd >= 0) {
        unwatch(client->cgi_pidfd);
        close(client->cgi_pidfd);
    }
    client->cgi_pidfd = -1;
    drop_spool(client);
}

/* Of the headers of a program's output, those that are the client's. The body's place, or 0: that is no output. */
static off_t read_headers(int spool, char status[static 64], char headers[static HEAD_MAX])
{
    char text[HEAD_MAX], *rest = text, *line;
    size_t length = 0;
    ssize_t have = pread(spool, text, sizeof text - 1, 0);
    text[have > 0 ? have : 0] = 0;
    headers[0] = 0;
    while ((line = strsep(&rest, "\n")) && rest) {
        line[strcspn(line, "\r")] = 0;
        if (!*line)
            return length > 0 || *status ? rest - text : 0;
        const char *value = strchr(line, ':');
        if (!value)
            return 0;
        value += 1 + strspn(value + 1, " \t");
        if (strncasecmp(line, "Status:", 7) == 0) {
            snprintf(status, 64, "%s", value);
        } else if (strncasecmp(line, "Content-Length:", 15) != 0 && strncasecmp(line, "Connection:", 11) != 0 &&
                   strncasecmp(line, "Transfer-Encoding:", 18) != 0 && strncasecmp(line, "Date:", 5) != 0) {
            if (strncasecmp(line, "Location:", 9) == 0 && !*status)
                snprintf(status, 64, "302 Found");
            length += (size_t)snprintf(headers + length, HEAD_MAX - length, "%s\r\n", line);
            if (length >= HEAD_MAX)
                return 0;
        }
    }
    return 0;
}

static void answer_output(struct client *client, int spool)
{
    char status[64] = "", headers[HEAD_MAX];
    struct stat stat;
    client->at = read_headers(spool, status, headers);
    client->phase = WRITING;
    if (client->at == 0 || fstat(spool, &stat) < 0) {
        close(spool);
        answer_error(client, 502, "");
        return;
    }
    client->end = stat.st_size;
    client->body = spool;
    answer_head(client, *status ? status : "200 OK", headers, client->end - client->at);
    if (strcmp(client->request.method, "HEAD") == 0)
        client->at = client->end;
}

void cgi_start(struct client *client)
{
    char script[PATH_BYTES];
    const char *info;
    if (client->body >= 0) {
        /* The program has ended under an earlier generation. */
        int spool = client->body;
        client->body = -1;
        answer_output(client, spool);
        return;
    }
    if (!find_program(client, script, &info)) {
        answer_error(client, 404, "");
        return;
    }
    if (client->note.id[0] == 0) {
        /* Before it runs for the first time. Never 0: that is none. */
        bool drawn = getrandom(client->note.id, sizeof client->note.id, 0) == sizeof client->note.id;
        client->note.id[0] |= drawn;
        client_note(client);
    }
    if (client->note.id[0] == 0 || !run(client, script, info)) {
        drop_spool(client);
        answer_error(client, 500, "");
    }
}

void cgi_ended(struct client *client)
{
    int status = 0, spool = client->spool;
    /* The descriptor may be another program's by now. */
    if (waitpid(client->cgi, &status, WNOHANG) == 0)
        return;
    client->cgi = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        client->spool = -1;
        cgi_kill(client);
        answer_output(client, spool);
        return;
    }
    cgi_kill(client);
    client->phase = WRITING;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        answer_error(client, 504, "");
    else if ((WIFEXITED(status) && WEXITSTATUS(status) == 127) || client->cgi_runs == RUNS_MAX)
        answer_error(client, 502, "");
    else
        cgi_start(client);
}
