/* Requests: RFC 9112, of which everything doubtful is refused, as the next one would begin at the wrong byte. */
#define _GNU_SOURCE
#include "httpd.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *request_header(const struct request *request, const char *name)
{
    for (size_t i = 0; i < request->header_count; i++)
        if (strcasecmp(request->headers[i].name, name) == 0)
            return request->headers[i].value;
    return NULL;
}

static size_t count_headers(const struct request *request, const char *name)
{
    size_t count = 0;
    for (size_t i = 0; i < request->header_count; i++)
        count += strcasecmp(request->headers[i].name, name) == 0;
    return count;
}

/* Whether a list, such as "keep-alive, TE", has a word. */
static bool lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (*list) {
        list += strspn(list, ", \t");
        size_t item = strcspn(list, ", \t");
        if (item == length && strncasecmp(list, word, length) == 0)
            return true;
        list += item;
    }
    return false;
}

static bool connection_says(const struct request *request, const char *word)
{
    for (size_t i = 0; i < request->header_count; i++)
        if (strcasecmp(request->headers[i].name, "Connection") == 0 && lists(request->headers[i].value, word))
            return true;
    return false;
}

static int digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - digits) : -1;
}

static int decode_path(struct request *request)
{
    size_t length = 0;
    for (const char *at = request->target; *at; at++) {
        char c = *at;
        if (c == '%') {
            int high = digit(at[1]), low = high < 0 ? -1 : digit(at[2]);
            if (low < 0 || high + low == 0)
                return 400;
            c = (char)(high << 4 | low);
            at += 2;
        }
        if (length + 1 == sizeof request->path)
            return 414;
        request->path[length++] = c;
    }
    request->path[length] = 0;
    return 0;
}

static int parse_target(struct request *request)
{
    /* Who asks a proxy names the host, too. */
    if (strncasecmp(request->target, "http://", 7) == 0) {
        request->target += 7 + strcspn(request->target + 7, "/?");
        if (*request->target != '/')
            request->target = "/";
    }
    if (*request->target != '/')
        return 400;
    char *query = strchr(request->target, '?');
    request->query = query ? query + 1 : "";
    if (query)
        *query = 0;
    return decode_path(request);
}

static int parse_first_line(struct request *request, char *line)
{
    static const char *const others[] = {"PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"};
    request->method = strsep(&line, " ");
    request->target = strsep(&line, " ");
    if (!line || strncmp(line, "HTTP/", 5) != 0 || strlen(line) != 8)
        return 400;
    if (strncmp(line, "HTTP/1.", 7) != 0 || !isdigit((unsigned char)line[7]))
        return 505;
    request->minor = line[7] - '0';
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(request->method, others[i]) == 0)
            return 405;
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0 &&
        strcmp(request->method, "POST") != 0)
        return 501;
    return parse_target(request);
}

static int parse_header(struct request *request, char *line)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t name = strspn(line, token);
    if (name == 0 || line[name] != ':')
        return 400;
    if (request->header_count == HEADERS_MAX)
        return 431;
    line[name] = 0;
    char *value = line + name + 1;
    value += strspn(value, " \t");
    for (size_t length = strlen(value); length > 0 && strchr(" \t", value[length - 1]); length--)
        value[length - 1] = 0;
    request->headers[request->header_count].name = line;
    request->headers[request->header_count++].value = value;
    return 0;
}

/* What the head says of the body and the connection. */
static int understand(struct request *request)
{
    const char *length = request_header(request, "Content-Length");
    const char *coding = request_header(request, "Transfer-Encoding");
    const char *expect = request_header(request, "Expect");
    if (count_headers(request, "Host") > 1 || (request->minor > 0 && !request_header(request, "Host")))
        return 400;
    if (count_headers(request, "Content-Length") + count_headers(request, "Transfer-Encoding") > 1)
        return 400;
    if (coding && strcasecmp(coding, "chunked") != 0)
        return 501;
    request->chunked = coding;
    if (length) {
        if (!*length || strspn(length, "0123456789") != strlen(length))
            return 400;
        if (strlen(length) > 9 || (request->content_length = strtoul(length, NULL, 10)) > REQUEST_MAX)
            return 413;
    }
    request->keeps_alive = request->minor > 0 ? !connection_says(request, "close")
                                              : connection_says(request, "keep-alive");
    request->expects_continue = request->minor > 0 && expect && strcasecmp(expect, "100-continue") == 0;
    return 0;
}

static int parse_head(struct request *request, char *head, char *end)
{
    if (memchr(head, 0, (size_t)(end - head)))
        return 400;
    bool first = true;
    for (char *line = head, *next; line < end; line = next) {
        next = strstr(line, "\r\n");
        *next = 0;
        next += 2;
        /* A single one would let a header end in two ways. */
        if (strpbrk(line, "\r\n"))
            return 400;
        int error = first ? parse_first_line(request, line) : parse_header(request, line);
        if (error)
            return error;
        first = false;
    }
    return understand(request);
}

/* Moves the chunks that are here together: one body, at its place. */
static int parse_chunks(struct request *request, char *input, size_t have)
{
    for (;;) {
        char *line = input + request->at;
        char *data = memmem(line, have - request->at, "\r\n", 2);
        if (!data)
            return 0;
        data += 2;
        if (request->in_trailer) {
            request->at = (size_t)(data - input);
            if (data == line + 2) {
                request->length = request->at;
                return 200;
            }
            continue;
        }
        size_t size = 0, digits = 0;
        for (; digit(line[digits]) >= 0 && size <= REQUEST_MAX; digits++)
            size = size << 4 | (size_t)digit(line[digits]);
        if (size > REQUEST_MAX)
            return 413;
        if (digits == 0 || !line[digits] || !strchr("\r; \t", line[digits]))
            return 400;
        request->in_trailer = size == 0;
        if (size > 0) {
            if ((size_t)(input + have - data) < size + 2)
                return 0;
            if (memcmp(data + size, "\r\n", 2) != 0)
                return 400;
            memmove(request->body + request->body_length, data, size);
            request->body_length += size;
            data += size + 2;
        }
        request->at = (size_t)(data - input);
    }
}

static int parse_body(struct request *request, char *input, size_t have)
{
    if (request->chunked)
        return parse_chunks(request, input, have);
    request->length = request->head_length + request->content_length;
    if (request->length > REQUEST_MAX)
        return 413;
    request->body_length = request->content_length;
    return have < request->length ? 0 : 200;
}

int request_parse(struct request *request, char *input, size_t have)
{
    if (request->head_length == 0) {
        size_t begin = 0;
        /* Some send an empty line behind a body. */
        while (have - begin >= 2 && memcmp(input + begin, "\r\n", 2) == 0)
            begin += 2;
        size_t from = request->at > begin + 3 ? request->at - 3 : begin;
        char *end = memmem(input + from, have - from, "\r\n\r\n", 4);
        request->at = have;
        if (end ? end - input > HEAD_MAX : have > HEAD_MAX)
            return 431;
        if (!end)
            return 0;
        request->at = request->head_length = (size_t)(end + 4 - input);
        request->body = end + 4;
        int error = parse_head(request, input + begin, end + 2);
        if (error)
            return error;
    }
    int status = parse_body(request, input, have);
    return status == 0 && have == REQUEST_MAX ? 413 : status;
}
