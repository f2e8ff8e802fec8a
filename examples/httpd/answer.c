/* Answers: files, parts of files, and errors (RFC 9110). */
#define _GNU_SOURCE
#include "httpd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A pipe among the files must not keep the server waiting. */
enum { TO_READ = O_RDONLY | O_NONBLOCK | O_NOCTTY };

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"}, {206, "Partial Content"}, {301, "Moved Permanently"}, {304, "Not Modified"},
        {400, "Bad Request"}, {403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"},
        {413, "Content Too Large"}, {414, "URI Too Long"}, {416, "Range Not Satisfiable"},
        {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"}, {501, "Not Implemented"},
        {502, "Bad Gateway"}, {503, "Service Unavailable"}, {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}

static const char *type_of(const char *path)
{
    static const char *const types[][2] = {
        {".html", "text/html; charset=utf-8"}, {".css", "text/css"}, {".js", "text/javascript"},
        {".txt", "text/plain; charset=utf-8"}, {".json", "application/json"}, {".xml", "application/xml"},
        {".png", "image/png"}, {".jpg", "image/jpeg"}, {".gif", "image/gif"}, {".svg", "image/svg+xml"},
        {".ico", "image/x-icon"}, {".pdf", "application/pdf"}, {".wasm", "application/wasm"},
    };
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++)
        if (strcasecmp(dot, types[i][0]) == 0)
            return types[i][1];
    return "application/octet-stream";
}

static const char *date(time_t time, char text[static 30])
{
    struct tm tm;
    strftime(text, 30, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&time, &tm));
    return text;
}

/* -1: it is none. There are three forms of old. */
static time_t parse_date(const char *text)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT",
                                        "%a %b %e %H:%M:%S %Y"};
    for (size_t i = 0; i < 3; i++) {
        struct tm tm = {0};
        const char *end = strptime(text, forms[i], &tm);
        if (end && !*end)
            return timegm(&tm);
    }
    return -1;
}

/* Behind what is there already. `length` is that of the body, or -1: there is none, by its status. */
void answer_head(struct client *client, const char *status, const char *headers, off_t length)
{
    char when[30], size[48] = "";
    if (length >= 0)
        snprintf(size, sizeof size, "Content-Length: %lld\r\n", (long long)length);
    if (client->note.time == 0)
        client->note.time = time(NULL);
    size_t room = sizeof client->head - client->head_length;
    client->head_length += (size_t)snprintf(client->head + client->head_length, room,
                                            "HTTP/1.1 %s\r\nDate: %s\r\n%s%sConnection: %s\r\n\r\n", status,
                                            date(client->note.time, when), headers, size,
                                            client->closes ? "close" : "keep-alive");
}

static void answer_status(struct client *client, int status, const char *headers, off_t length)
{
    char line[64];
    snprintf(line, sizeof line, "%d %s", status, reason(status));
    answer_head(client, line, headers, length);
}

static bool only_head(const struct client *client)
{
    return client->request.method && strcmp(client->request.method, "HEAD") == 0;
}

void answer_error(struct client *client, int status, const char *more)
{
    char text[64], headers[HEAD_MAX + 64];
    int length = snprintf(text, sizeof text, "%d %s\n", status, reason(status));
    snprintf(headers, sizeof headers, "Content-Type: text/plain\r\n%s", more);
    answer_status(client, status, headers, length);
    if (!only_head(client)) {
        memcpy(client->head + client->head_length, text, (size_t)length);
        client->head_length += (size_t)length;
    }
}

/* The kernel sees to it that no "..", no link and no race leads out of the root. */
int open_below_root(const char *path, int flags)
{
    struct open_how how = {
        .flags = (uint64_t)flags | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    long file;
    do
        file = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof how);
    while (file < 0 && (errno == EAGAIN || errno == EINTR));
    return (int)file;
}

/* 200: all of it; 206: from `begin` up to `end`; 416. What is not understood is to be ignored. */
static int parse_range(const char *range, off_t size, off_t *begin, off_t *end)
{
    char *rest;
    if (!range || strncasecmp(range, "bytes=", 6) != 0 || strchr(range, ','))
        return 200;
    range += 6;
    if (strspn(range, "0123456789-") != strlen(range) || strstr(range, "--") || !strpbrk(range, "0123456789"))
        return 200;
    if (*range == '-') {
        long long last = strtoll(range + 1, &rest, 10);
        *begin = last < size ? size - last : 0;
        *end = size;
        return *rest ? 200 : last == 0 || size == 0 ? 416 : 206;
    }
    long long first = strtoll(range, &rest, 10), last = size - 1;
    if (*rest != '-')
        return 200;
    if (rest[1]) {
        last = strtoll(rest + 1, &rest, 10);
        if (*rest || last < first)
            return 200;
    }
    *begin = first;
    *end = last < size ? last + 1 : size;
    return first >= size ? 416 : 206;
}

/* Whether the client has this one already. */
static bool is_known(const struct request *request, const char *tag, time_t modified)
{
    const char *tags = request_header(request, "If-None-Match");
    const char *since = request_header(request, "If-Modified-Since");
    if (tags)
        return strcmp(tags, "*") == 0 || strstr(tags, tag);
    time_t known = since ? parse_date(since) : -1;
    return known >= 0 && modified <= known;
}

static void answer_file(struct client *client, int file, const struct stat *stat, const char *name)
{
    const struct request *request = &client->request;
    char tag[80], modified[30], headers[512], range[80] = "";
    unsigned long long modified_ns = (unsigned long long)stat->st_mtim.tv_sec * 1000000000 +
                                     (unsigned long long)stat->st_mtim.tv_nsec;
    snprintf(tag, sizeof tag, "\"%llx-%llx-%llx\"", (unsigned long long)stat->st_ino,
             (unsigned long long)stat->st_size, modified_ns);
    date(stat->st_mtim.tv_sec, modified);
    client->at = 0;
    client->end = stat->st_size;
    int status = is_known(request, tag, stat->st_mtim.tv_sec) ? 304 : 200;
    const char *only_if = request_header(request, "If-Range");
    bool only_part = !only_if || strcmp(only_if, tag) == 0 || strcmp(only_if, modified) == 0;
    if (status == 200 && !only_head(client) && only_part)
        status = parse_range(request_header(request, "Range"), stat->st_size, &client->at, &client->end);
    if (status == 416) {
        snprintf(range, sizeof range, "Content-Range: bytes */%lld\r\n", (long long)stat->st_size);
        answer_error(client, 416, range);
        close(file);
        return;
    }
    if (status == 206)
        snprintf(range, sizeof range, "Content-Range: bytes %lld-%lld/%lld\r\n", (long long)client->at,
                 (long long)client->end - 1, (long long)stat->st_size);
    snprintf(headers, sizeof headers, "Content-Type: %s\r\nLast-Modified: %s\r\nETag: %s\r\nAccept-Ranges: bytes\r\n%s",
             type_of(name), modified, tag, range);
    answer_status(client, status, headers, status == 304 ? -1 : client->end - client->at);
    if (status == 304 || only_head(client))
        close(file);
    else
        client->body = file;
}

static void answer_path(struct client *client, const char *path)
{
    char index[PATH_BYTES + 16], headers[HEAD_MAX + 16];
    struct stat stat;
    /* An interrupted answer goes on with the file that it began with, whatever has that name by now. */
    int file = client->body >= 0 ? client->body : open_below_root(path, TO_READ);
    client->body = -1;
    if (file < 0 || fstat(file, &stat) < 0) {
        bool has_no_room = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        answer_error(client, has_no_room ? 503 : errno == EACCES ? 403 : 404, "");
        return;
    }
    bool wants_folder = !*path || path[strlen(path) - 1] == '/';
    if (S_ISREG(stat.st_mode)) {
        answer_file(client, file, &stat, wants_folder ? "index.html" : path);
        return;
    }
    close(file);
    if (!S_ISDIR(stat.st_mode)) {
        answer_error(client, 403, "");
    } else if (!wants_folder) {
        snprintf(headers, sizeof headers, "Location: %s/\r\n", client->request.target);
        answer_error(client, 301, headers);
    } else if (snprintf(index, sizeof index, "%sindex.html", path), (file = open_below_root(index, TO_READ)) < 0) {
        answer_error(client, 404, "");
    } else if (fstat(file, &stat) < 0 || !S_ISREG(stat.st_mode)) {
        close(file);
        answer_error(client, 404, "");
    } else {
        answer_file(client, file, &stat, index);
    }
}

void answer_request(struct client *client)
{
    const struct request *request = &client->request;
    client->closes = !request->keeps_alive;
    if (is_cgi(request->path))
        cgi_start(client);
    else if (strcmp(request->method, "POST") == 0)
        answer_error(client, 405, "Allow: GET, HEAD\r\n");
    else
        answer_path(client, request->path + 1);
}
